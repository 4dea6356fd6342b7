"""Targets and hosts of a config: where they lie, and how they are shown."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import PathFinder
from pathlib import Path

from ioprobe.config import Config, HostConfig, PipelineConfig
from ioprobe.errors import TargetError
from ioprobe.run import Host
from ioprobe.units import format_count


def located(target: str, config: Config) -> str:
    """Return a target with its relative path counted from the config's folder.

    >>> located("s3://bucket/x.tar", Config())
    's3://bucket/x.tar'
    """
    if "://" in target or not config.path:
        return target
    place, colon, function = target.rpartition(":")
    if is_factory(target):
        return f"{config.folder / place}{colon}{function}" if place.endswith(".py") else target
    return str(config.folder / target)


def is_factory(target: str) -> bool:
    """Return whether a target names a function rather than data; imports nothing, unlike the probe's own."""
    place, _, function = target.rpartition(":")
    if not place or not function.isidentifier() or "://" in target:
        return False
    return place.endswith(".py") or all(part.isidentifier() for part in place.split("."))


def says_shards(table: PipelineConfig) -> bool:
    """Return whether a table tells of its shards, so that nothing need be listed."""
    return table.num_shards is not None or table.shard_bytes is not None


def require_factory(target: str) -> None:
    """Make sure, without running any code, that the file or module of a factory can be found.

    Raises:
        TargetError: it cannot.
    """
    place = target.rpartition(":")[0]
    if place.endswith(".py"):
        if not Path(place).is_file():
            raise TargetError(
                f"no such file '{place}'", hint="give the path of your Python file and the factory's name"
            )
        return
    folders: Sequence[str] | None = [str(Path.cwd()), *sys.path]
    for part in place.split("."):
        spec = PathFinder.find_spec(part, folders)
        if spec is None:
            raise TargetError(f"no module '{place}'", hint="run from the folder that holds it, or install it")
        folders = spec.submodule_search_locations


def require_dataset(target: str) -> None:
    """Make sure that there may be something at a local path.

    Raises:
        TargetError: nothing is there.
    """
    if target.endswith(".py"):
        raise TargetError(
            f"'{target}' is Python code, and no function is named", hint=f"name the factory: {target}:make_loader"
        )
    if not is_there(target):
        raise TargetError(
            f"no dataset at '{target}'",
            hint="check the path; --no-load, or load = false in [check], judges the table alone",
        )


def is_there(target: str) -> bool:
    """Return whether a dataset may exist as seen from here: a URL, a local path, or the folder of a pattern."""
    if "://" in target:
        return True
    head = target
    for sign in "{*?[":
        head = head.split(sign, 1)[0]
    place = Path(head)
    return place.exists() if head == target else (place if head.endswith("/") else place.parent).is_dir()


def shown(target: str) -> str:
    """Return a target without credentials."""
    if "://" not in target:
        return target
    from ioprobe.secrets import redact_url

    return redact_url(target)


def host_words(host: HostConfig | Host, name: str) -> str:
    """Return a host and where its facts come from, in words."""
    if isinstance(host, HostConfig):
        where = f"[hosts.{name}]" if name else "[host]"
        cores, accelerators = host.cores, host.accelerators
    else:
        where = "this machine" + (f" ({host.usable_cores_because})" if host.usable_cores_because else "")
        cores, accelerators = host.usable_cores, len(host.accelerators)
    known = [
        f"{format_count(cores)} cores" if cores is not None else "cores not known",
        f"{accelerators} accelerator{'' if accelerators == 1 else 's'}"
        if accelerators is not None
        else "accelerators not known",
    ]
    return f"{where}: {', '.join(known)}"
