"""``ioprobe.toml`` for commands that measure: a pipeline by name, and defaults for options not given."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ioprobe.errors import UsageError

if TYPE_CHECKING:
    from ioprobe.config import Config


class Pipeline(NamedTuple):
    """What a pipeline of the config file says of a measurement."""

    target: str
    step: str | None
    step_ms: float | None
    overrides: dict[str, Any]


def is_config(target: str | None) -> bool:
    """Return whether a target is a config file rather than data or code."""
    return target is not None and target.endswith(".toml") and Path(target).is_file()


def pipeline_of(config: Config, name: str | None) -> Pipeline:
    """Return a pipeline of a config; the only one where no name is given.

    Raises:
        UsageError: no such pipeline, several and no name, or one without a target.
    """
    names = sorted(config.pipelines)
    if name is None:
        if len(names) != 1:
            raise UsageError(
                f"'{config.path}' has {len(names)} pipelines: {', '.join(names) or 'none'}",
                hint="name one with --pipeline",
            )
        name = names[0]
    if name not in config.pipelines:
        raise UsageError(f"'{config.path}' has no pipeline '{name}'; it has: {', '.join(names) or 'none'}")
    found = config.pipelines[name]
    if not found.target:
        raise UsageError(f"pipeline '{name}' in '{config.path}' has no target", hint='add: target = "train.py:loader"')
    return Pipeline(_located(config, found.target), _located(config, found.step) or None, found.step_ms,
                    found.overrides())  # fmt: skip


def _located(config: Config, target: str) -> str:
    """Return a target with a relative path made relative to the config's folder."""
    place, colon, rest = target.partition(":")
    if not target or "://" in target or Path(place).is_absolute():
        return target
    beside = config.folder / place
    is_path = place.endswith(".py") or not colon
    return f"{beside}{colon}{rest}" if is_path else target


def dlio_target(path: Path) -> tuple[str, tuple[str, ...], float, dict[str, float]]:
    """Return (target, factory keywords, step [ms], nominal figures) of a DLIO workload.

    Its dataset is read where it is, or written once below the runs' folder.

    Raises:
        ConfigError: the workload cannot be read or asks for what is not supported.
    """
    import json

    from ioprobe.data.dlio import load_workload
    from ioprobe_cli.output import RUNS_FOLDER

    found = load_workload(str(path))
    folder = Path.cwd() / RUNS_FOLDER / ".dlio-data" / path.stem
    sets = (f"workload={json.dumps(str(path.resolve()))}", f"folder={json.dumps(str(folder))}")
    nominal = {
        "batch_size": float(found.batch_size),
        "record_bytes": float(found.record_length_bytes),
        "computation_s": found.computation_time_s,
    }
    return "ioprobe.data.dlio_dataset:make_loader", sets, 1e3 * found.computation_time_s, nominal
