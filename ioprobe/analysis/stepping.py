"""Measure a step at several settings, each in a process of its own."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from ioprobe import __version__
from ioprobe.analysis.declared import declare_flops, parse_transformer
from ioprobe.diagnosis.steady import steady
from ioprobe.diagnosis.step_table import StepRow, StepTable
from ioprobe.errors import IoprobeError, UsageError
from ioprobe.probe import protocol
from ioprobe.probe.host import measure_host
from ioprobe.probe.step_vary import Variation
from ioprobe.probe.supervise import Supervisor
from ioprobe.probe.synthetic import parse_shape
from ioprobe.run import Failure, StepRun, now_utc
from ioprobe.stats import Estimate

Progress = Callable[[str, float, float], None]

SYNTHETIC = "ioprobe.probe.synthetic:make_batches"
_LOADER_S = 4.0
_COMPILE_S = 600.0
_MOST_ROWS = 64


@dataclass(frozen=True)
class StepRequest:
    """One table of steps."""

    step: str
    """Factory of the step."""
    target: str | None = None
    """Loader that gives the batch."""
    shape: str | None = None
    """Made-up batch instead."""
    vary: tuple[str, ...] = ()
    """Such as ``batch=16,32`` and ``precision=fp32,bf16``."""
    seconds: float = 5.0
    """Budget of each step in steady state [s]."""
    loader_options: dict[str, Any] = field(default_factory=dict)
    batch_samples: int | None = None
    unit: str = "samples"
    tokens_per_sample: int | None = None
    transformer: str | None = None
    """Declared shape, for FLOPs by formula instead of counting."""
    hang_s: float = 60.0
    log: Path | None = None
    """Takes what the user's code prints; None drops it."""

    def __post_init__(self) -> None:
        if (self.target is None) == (self.shape is None):
            raise UsageError(
                "a step needs a batch: from a loader, or made up" + (", not both" if self.target else ""),
                hint="name the loader's factory or the dataset, or pass --shape 32,3,224,224",
            )
        if not 0 < self.seconds < math.inf:
            raise UsageError(f"--seconds is {self.seconds:g}; it must be positive and finite")
        if self.shape is not None:
            parse_shape(self.shape)
        if self.transformer is not None:
            parse_transformer(self.transformer)


def parse_vary(texts: Sequence[str]) -> dict[str, list[str]]:
    """Return values by name, written as ``batch=16,32`` or ``batch=16,32,precision=fp32,bf16``.

    >>> parse_vary(["batch=16,32,precision=fp32,bf16", "compile=off,on"])
    {'batch': ['16', '32'], 'precision': ['fp32', 'bf16'], 'compile': ['off', 'on']}

    Raises:
        UsageError: a name or value that is not known, or too many rows.
    """
    found: dict[str, list[str]] = {}
    name = ""
    for word in itertools.chain.from_iterable(text.replace(" ", ",").split(",") for text in texts):
        before, equals, after = word.partition("=")
        if equals:
            name = before.strip()
            found.setdefault(name, [])
        value = (after if equals else word).strip()
        if not name or not value:
            raise UsageError(f"cannot read --vary '{' '.join(texts)}'", hint="write it like precision=fp32,bf16")
        if name == "batch":
            if not value.isdecimal() or not int(value):
                raise UsageError(f"a batch of '{value}' cannot be", hint="write it like batch=16,32")
        else:
            Variation.of({name: value})
        found[name].append(value)
    rows = 1
    for values in found.values():
        rows *= len(values)
    if rows > _MOST_ROWS:
        raise UsageError(f"--vary gives {rows} rows; at most {_MOST_ROWS} are measured", hint="leave values out")
    return found


def measure_steps(request: StepRequest, *, progress: Progress | None = None) -> StepTable:
    """Measure every setting and return the table; an interrupt returns the rows so far.

    Raises:
        TargetError: loader or step cannot be made as they are.
        UsageError: the step cannot be varied as asked.
    """
    varied = parse_vary(request.vary)
    settings = [dict(zip(varied, values, strict=True)) for values in itertools.product(*varied.values())]
    rows: list[StepRow] = []
    loaders: dict[str, Estimate | None] = {}
    complete = True
    for number, setting in enumerate(settings):
        label = ", ".join(f"{k}={v}" for k, v in setting.items()) or "the step"
        text = f"{label} ({number + 1} of {len(settings)})" if len(settings) > 1 else label
        try:
            rows.append(_row(request, setting, loaders, _labelled(progress, text)))
        except KeyboardInterrupt:
            complete = False
            break
        except IoprobeError as error:
            if not rows:
                raise
            failure = Failure(phase="step", kind="exception", message=error.message, hint=error.hint)
            rows.append(StepRow(settings=setting, step=StepRun(durations_s=[], failure=failure)))
    if request.transformer is not None:
        for row in rows:
            declare_flops(row.step, request.transformer)
    return StepTable(
        source=request.step,
        created_at=now_utc(),
        version=__version__,
        host=measure_host(with_torch=any(row.step.device != "cpu" for row in rows)),
        rows=rows,
        unit=request.unit,
        complete=complete,
    )


def _labelled(progress: Progress | None, label: str) -> Progress | None:
    if progress is None:
        return None
    return lambda text, done_s, of_s: progress(f"{label}: {text}", done_s, of_s)


def _row(
    request: StepRequest, setting: dict[str, str], loaders: dict[str, Estimate | None], progress: Progress | None
) -> StepRow:
    options = dict(request.loader_options)
    if request.shape is not None:
        options["shape"] = request.shape
    if "batch" in setting:
        options["batch_size"] = int(setting["batch"])
    query = urlencode({name: value for name, value in setting.items() if name != "batch"})
    load = protocol.Load(
        target=request.target or SYNTHETIC,
        step=f"{request.step}?{query}" if query else request.step,
        step_source=request.step,
        loader_options=options,
        batch_samples=request.batch_samples,
    )
    if progress is not None:
        progress("starting", 0.0, 0.0)
    # Compiling shows no progress and may take minutes.
    hang_s = max(request.hang_s, _COMPILE_S) if "compile" in setting else request.hang_s
    with Supervisor(log=request.log, progress=progress, hang_s=hang_s) as supervisor:
        supervisor.load(load)
        batch = setting.get("batch", "")
        # With something to compare, say which rung binds: the loader is measured once per batch size.
        if request.vary and request.target is not None and batch not in loaders:
            measured = supervisor.measure(protocol.Measure(coupled=False, seconds=_LOADER_S))
            state = steady(measured)
            loaders[batch] = None if state is None else state.samples_per_s
        step = supervisor.step(protocol.Step(seconds=request.seconds, tokens_per_sample=request.tokens_per_sample))
    return StepRow(settings=setting, step=step, loader_samples_per_s=loaders.get(batch))
