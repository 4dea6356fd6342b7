"""A file of random bytes, and the words in which an engine is told to read it."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

MiB = 1 << 20


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("blocks") / "data.bin"
    path.write_bytes(os.urandom(8 * MiB))
    return path


def command(path: Path, **more: Any) -> dict[str, Any]:
    now = time.perf_counter_ns()
    base = {
        "path": str(path),
        "block_bytes": 4096,
        "size_bytes": path.stat().st_size,
        "random": True,
        "direct": False,
        "once": True,
        "advise": True,
        "seed": 1,
        "ramp_ns": 0,
        "at_ns": now,
        "end_ns": now + 20_000_000_000,
    }
    return {**base, **more}


def job(depth: int) -> dict[str, Any]:
    return {"depth": depth, "slot": 0, "stream": 0, "streams": 1}
