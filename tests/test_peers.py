"""What the benchmark beside peers does with a peer that takes too long."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import psutil
import pytest

PARENT = """
import subprocess, sys, tempfile, time
with tempfile.TemporaryDirectory(dir=sys.argv[1]) as folder:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    open(sys.argv[1] + "/pid", "w").write(str(child.pid))
    time.sleep(600)
"""


@pytest.fixture
def environment() -> ModuleType:
    path = Path(__file__).parents[1] / "benchmarks" / "peers_environment.py"
    spec = importlib.util.spec_from_file_location("peers_environment", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_peer_that_takes_too_long_ends_with_all_it_started(environment: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(environment.Skipped, match="took longer than 2 s"):
        environment.run([sys.executable, "-c", PARENT, tmp_path], 2)
    child = int((tmp_path / "pid").read_text())
    # Nobody may have buried it yet.
    assert not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE
    assert [p.name for p in tmp_path.iterdir()] == ["pid"]
