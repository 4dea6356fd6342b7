"""What an analysis is asked to do."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ioprobe.analysis.declared import parse_transformer
from ioprobe.errors import UsageError

DEFAULT_SECONDS = 45.0


_MOST_S = 7 * 86_400.0


@dataclass(frozen=True)
class Request:
    """One analysis."""

    target: str
    """Dataset URL or factory."""
    kind: str = "analyze"
    command: str = ""
    """The command line, credentials removed."""
    step: str | None = None
    """Factory of the step."""
    step_s: float | None = None
    """Emulated step [s]; excludes ``step``."""
    step_s_per_sample: float | None = None
    """Emulated step in proportion to the batch size [s]; excludes the other two."""
    step_source: str = ""
    """Where an emulated step's time comes from."""
    accelerator: str = ""
    """What an emulated step stands for; empty where nothing says so."""
    transformer: str | None = None
    """Declared shape, for FLOPs by formula instead of counting."""
    seconds: float = DEFAULT_SECONDS
    """Bound of the whole analysis [s], start-up of processes left out."""
    loader_options: dict[str, Any] = field(default_factory=dict)
    """Keywords for the factory, or settings of the built-in loader."""
    batch_samples: int | None = None
    """Samples in a batch, where they cannot be counted."""
    unit: str = "samples"
    tokens_per_sample: int | None = None
    verify: bool = True
    """Run the recommended setting, too."""
    storage: bool = True
    """Measure the dataset's storage, where the target is a URL."""
    hang_s: float = 60.0
    """How long a factory or the wait for a batch may take before it counts as a hang [s]."""
    folder: Path | None = None
    """Where the user's output is logged; None to drop it."""
    seed: int = 0
    dlio: dict[str, float] = field(default_factory=dict)
    """Nominal figures of a DLIO workload, for DLIO's own metrics."""
    phases: tuple[str, ...] = ("loop", "step", "loader")
    """What to measure, in this order; ``loader`` alone for ``ioprobe loader``."""

    def __post_init__(self) -> None:
        if not self.seconds > 0:
            raise UsageError(f"--seconds is {self.seconds:g}; it must be positive")
        if self.seconds > _MOST_S or not self.hang_s <= _MOST_S:
            raise UsageError(
                f"measuring for more than {_MOST_S:g} s cannot be meant", hint="see --seconds and --timeout"
            )
        if sum(x is not None for x in (self.step, self.step_s, self.step_s_per_sample)) > 1:
            raise UsageError("a real and an emulated step exclude each other", hint="give one of them")
        if self.step_s is not None and not 0 <= self.step_s < 3600:
            raise UsageError(f"the emulated step is {self.step_s:g} s; expected 0 to 3600 s")
        if self.transformer is not None:
            parse_transformer(self.transformer)
        if self.batch_samples is not None and self.batch_samples < 1:
            raise UsageError(f"--batch-samples is {self.batch_samples}; it must be at least 1")

    @property
    def has_step(self) -> bool:
        """Whether there is a step to couple the loader with."""
        return any(x is not None for x in (self.step, self.step_s, self.step_s_per_sample))
