"""Traces with planted shares, and the shares that are read back from them."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from ioprobe.live.traces.kineto import read_kineto
from ioprobe.live.traces.partition import partitions
from ioprobe.run import Partition

SHARES = ("compute", "communication", "transfer", "data_stall", "other_idle")


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    import importlib.util
    import sys

    path = Path(__file__).parents[1] / "fixtures/traces/generate.py"
    spec = importlib.util.spec_from_file_location("generate_traces", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["generate_traces"] = module
    spec.loader.exec_module(module)
    return module


def shares(partition: Partition) -> dict[str, float]:
    return {name: getattr(partition, f"{name}_s") / partition.window_s for name in SHARES}


def only(path: Path) -> Partition:
    (found,) = partitions(read_kineto(path))
    return found
