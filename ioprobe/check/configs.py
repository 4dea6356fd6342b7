"""From what was named on the command line (or by a test) to the configs to judge."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from ioprobe.check.targets import is_factory, shown
from ioprobe.config import Config, PipelineConfig, load_config
from ioprobe.config.places import Places
from ioprobe.diagnosis.check import CheckReport


def configs_of(
    targets: Sequence[str], config: Path | None = None, *, step: str | None = None, step_ms: float | None = None
) -> list[tuple[Config, bool]]:
    """Return (config, whether its pipelines are targets that were named) for each thing to judge.

    Args:
        targets: Config files, folders that hold one, factories and dataset URLs, in any order.
        config: The config whose hosts, budgets and selections apply to targets; the nearest by default.
        step: Factory of the step for targets.
        step_ms: Emulated step for targets [ms].

    Raises:
        ConfigError: a config cannot be read.
    """
    files = [target for target in targets if _is_config(target)]
    others = [target for target in targets if not _is_config(target)]
    out = [(load_config(file), False) for file in files]
    if others:
        base = load_config(config)
        pipelines: dict[str, PipelineConfig] = {}
        for target in dict.fromkeys(others):
            name = shown(target)
            while name in pipelines:  # alike but for their credentials
                name += " "
            pipelines[name] = PipelineConfig(target=target, step=step or "", step_ms=None if step else step_ms)
        # Without a path, relative targets count from here and not from the config's folder.
        out.append((msgspec.structs.replace(base, pipelines=pipelines, path="", places=Places({}, [])), True))
    if not targets:
        out.append((load_config(config), False))
    return out


def _is_config(target: str) -> bool:
    if "://" in target or is_factory(target):
        return False
    place = Path(target)
    if place.is_dir():
        return (place / "ioprobe.toml").is_file() or (place / "pyproject.toml").is_file()
    return place.suffix == ".toml"


def merged(reports: Sequence[CheckReport]) -> CheckReport:
    """Return several reports as one."""
    first = reports[0]
    caveats = list(dict.fromkeys(c for report in reports for c in report.caveats))
    return msgspec.structs.replace(
        first,
        pipelines=[p for report in reports for p in report.pipelines],
        outcomes=[o for report in reports for o in report.outcomes],
        ignored=[i for report in reports for i in report.ignored],
        errors=[e for report in reports for e in report.errors],
        caveats=caveats,
    )
