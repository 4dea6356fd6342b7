"""Other systems and Python versions: what does not work there is said in one line."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from made_runs import make_run

from ioprobe.run import dumps

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["run", "--", "python", "-V"], 2, "Error: this command does not run on linux: Python has no module"),
        (["report", "run.json"], 0, ""),
        (["predict", "run.json", "--set", "step_ms=5"], 0, ""),
        (["--help"], 0, ""),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)  # fmt: skip
def test_where_modules_of_unix_are_missing_saved_runs_are_read_and_the_rest_says_so(
    tmp_path: Path, words: list[str], code: int, says: str
) -> None:
    (tmp_path / "run.json").write_bytes(dumps(make_run(loop_wait_s=0.05, step_s=0.02, loader_cycle_s=0.06, n=24)))
    script = (
        "import signal, sys; sys.modules |= dict.fromkeys(['fcntl', 'resource', 'termios', 'pwd']); del signal.SIGHUP\n"
        f"from ioprobe_cli.main import main; main({words!r})"
    )
    ended = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == code, ended.stderr
    assert ended.stderr.startswith(says)
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("folder", ["ioprobe", "cli"])
def test_sources_are_python_3_10(folder: str) -> None:
    for path in (ROOT / folder).rglob("*.py"):
        tree = ast.parse(path.read_text(), str(path), feature_version=(3, 10))
        for node in ast.walk(tree):
            assert not isinstance(node, getattr(ast, "TryStar", ())), f"{path}: except* is of Python 3.11"
            if isinstance(node, ast.ImportFrom) and node.module in ("enum", "typing", "itertools", "datetime"):
                late = {a.name for a in node.names} & {"StrEnum", "Self", "override", "batched", "UTC", "assert_never"}
                assert not late, f"{path}:{node.lineno} imports {late}, which Python 3.10 has not"
