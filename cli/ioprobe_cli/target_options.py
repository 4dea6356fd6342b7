"""Options that every command on a TARGET shares, and the request they amount to."""

from __future__ import annotations

import functools
import shlex
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

import click

from ioprobe.errors import UsageError

if TYPE_CHECKING:
    from ioprobe_cli.ranked import Ranked

Command = TypeVar("Command", bound=Callable[..., Any])

_LOADER = (
    click.option("--num-workers", type=click.IntRange(0, 512), help="Worker processes."),
    click.option("--prefetch-factor", type=click.IntRange(1, 1024), help="Batches each worker prepares ahead."),
    click.option("--batch-size", type=click.IntRange(1), help="Samples in a batch."),
    click.option("--set", "sets", multiple=True, metavar="KEY=VALUE", help="A further keyword for the factory."),
)
_HANG = (
    click.option("--timeout", "hang_s", type=click.FloatRange(min=1), default=60.0, show_default=True,
                 help="Seconds without any progress after which the code under test counts as hanging."),
    click.option("--batch-samples", type=click.IntRange(1), help="Samples in a batch, where they cannot be counted."),
)  # fmt: skip
_MEASURE = (
    click.option("--seconds", type=float, default=45.0, show_default=True, help="Bound of the whole measurement."),
    *_HANG,
    click.option("--unit", type=click.Choice(["samples", "tokens"]), default="samples", help="What is counted."),
    click.option("--tokens-per-sample", type=click.IntRange(1), help="Adds tokens/s to the report."),
)
_STEP = (
    click.option("--step", metavar="FACTORY", help="The training step: file.py:function or module:function."),
    click.option("--step-ms", type=float, help="An emulated accelerator: each step sleeps this long."),
    click.option("--workload", metavar="NAME", help="An emulated step from published rates, such as resnet50."),
    click.option("--accelerator", metavar="NAME", help="The accelerator for --workload, such as h100."),
)
transformer_option = click.option(
    "--transformer",
    metavar="SHAPE",
    help="FLOPs by formula: parameters=8e9,layers=32,heads=32,head_size=128,sequence=8192[,active_parameters=..]"
    "[,causal][,recompute][,dtype=bf16].",
)


class LoaderOptions(NamedTuple):
    """Settings of the loader, as given; None where not."""

    num_workers: int | None
    prefetch_factor: int | None
    batch_size: int | None
    sets: tuple[str, ...]


class MeasureOptions(NamedTuple):
    """How long to measure and what to count: fields of a Request."""

    seconds: float
    hang_s: float
    batch_samples: int | None
    unit: str
    tokens_per_sample: int | None


class StepOptions(NamedTuple):
    """Where the step comes from, as given; None where not."""

    step: str | None
    step_ms: float | None
    workload: str | None
    accelerator: str | None

    @property
    def is_given(self) -> bool:
        """Whether a step was named at all."""
        return any(value is not None for value in (self.step, self.step_ms, self.workload))


def loader_options(command: Command) -> Command:
    """Settings of the loader; the command gets them as ``loader``."""
    return collected(command, "loader", LoaderOptions, _LOADER)


def measure_options(command: Command) -> Command:
    """How long to measure, and what to count; the command gets them as ``measure``."""
    return collected(command, "measure", MeasureOptions, _MEASURE)


def step_options(command: Command) -> Command:
    """Where the step comes from; the command gets it as ``stepping``."""
    return collected(command, "stepping", StepOptions, _STEP)


def hang_options(command: Command) -> Command:
    """When the code under test hangs and how many samples its batches hold: ``hang_s`` and ``batch_samples``."""
    return with_options(command, _HANG)


def collected(command: Command, name: str, kind: Any, options: tuple[Any, ...]) -> Command:
    """Give a command some options and hand their values over as one named tuple, whose fields are their names."""

    @functools.wraps(command)
    def gathered(*args: Any, **kwargs: Any) -> Any:
        return command(*args, **{name: kind(**{field: kwargs.pop(field) for field in kind._fields})}, **kwargs)

    return with_options(cast("Command", gathered), options)


def with_options(command: Command, options: tuple[Any, ...]) -> Command:
    """Give a command some options; in its help they stand in that order."""
    for option in reversed(options):
        command = option(command)
    return command


def command_line() -> str:
    """Return the command line as typed, credentials removed."""
    from ioprobe.secrets import redact_words

    return shlex.join(["ioprobe", *redact_words(sys.argv[1:])])


def loader_keywords(
    target: str,
    loader: LoaderOptions,
    configured: Mapping[str, Any] | None = None,
    where: Ranked | None = None,
) -> dict[str, Any]:
    """Return keywords for the factory, or settings of the built-in loader with its defaults.

    ``configured`` is what an ioprobe.toml says; options given on the command line win over it. The ranks of a host,
    where there are several, share its cores.

    Raises:
        UsageError: a ``--set`` that is no KEY=VALUE.
    """
    import json

    found: dict[str, Any] = dict(configured or {})
    for name in ("num_workers", "prefetch_factor", "batch_size"):
        if (value := getattr(loader, name)) is not None:
            found[name] = value
    for text in loader.sets:
        key, equals, raw = text.partition("=")
        if not equals or not key.strip().isidentifier():
            raise UsageError(f"cannot read --set '{text}'", hint="write it like --set image_size=256")
        try:
            found[key.strip()] = json.loads(raw)
        except ValueError:
            found[key.strip()] = {"True": True, "False": False, "None": None}.get(raw, raw)
    from ioprobe.probe.target import is_factory

    if not is_factory(target):
        from ioprobe.probe.host import measure_host

        cores = max(1, int(measure_host().usable_cores) // (where.place.local_ranks if where else 1))
        found = {"num_workers": min(4, cores), "batch_size": 32, "persistent_workers": True, **found}
    if found.get("num_workers") == 0:
        found.pop("prefetch_factor", None)
        found.pop("persistent_workers", None)
    return found


def step_of(stepping: StepOptions) -> dict[str, Any]:
    """Return the fields of a Request that describe the step.

    Raises:
        UsageError: more than one kind of step, or half a preset.
    """
    step, step_ms, workload, accelerator = stepping
    given = [
        name
        for name, value in (("--step", step), ("--step-ms", step_ms), ("--workload", workload))
        if value is not None
    ]
    if len(given) > 1:
        raise UsageError(f"{' and '.join(given)} exclude each other", hint="give one of them")
    if bool(workload) != bool(accelerator):
        hint = "such as --workload resnet50 --accelerator h100"
        raise UsageError("--workload and --accelerator belong together", hint=hint)
    if workload and accelerator:
        from ioprobe.facts import workload as find

        anchor = find(workload, accelerator)
        source = f"{anchor.id} on {anchor.accelerator} ({anchor.evidence}: {anchor.source})"
        return {"step_s_per_sample": 1 / anchor.samples_per_s, "step_source": source, "accelerator": accelerator}
    if step_ms is not None:
        if not 0 <= step_ms < 3.6e6:
            raise UsageError(f"--step-ms is {step_ms:g}; expected 0 to 3,600,000")
        return {"step_s": step_ms / 1e3, "step_source": f"emulated, --step-ms {step_ms:g}"}
    return {"step": step}
