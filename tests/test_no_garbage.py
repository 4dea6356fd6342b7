"""A long-lived process that uses the library: what a round made is gone when the round is over, by counting alone.

What refers to itself in a circle stays until Python's collector comes, which in a large process may be an hour.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

FAULTS = Path(__file__).parents[1] / "fixtures" / "pipelines" / "faults.py"
CALLS = """
import gc, sys
from ioprobe.analysis import Request, analyze, report_from_run
from ioprobe.report import html

def once():
    html.render(report_from_run(analyze(Request(target=sys.argv[1], step_s=0.01, seconds=2.0))))

once()  # what is made once and kept
gc.collect()
gc.disable()
gc.set_debug(gc.DEBUG_SAVEALL)
once()
gc.collect()
print(len(gc.garbage), sorted({type(one).__qualname__ for one in gc.garbage}))
"""


def test_an_analysis_leaves_nothing_to_the_collector(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    command = [sys.executable, "-c", CALLS, f"{FAULTS}:healthy"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
    assert done.stdout == "0 []\n", done.stderr
