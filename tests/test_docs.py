"""The README is a product: what it shows runs, and every command is told of."""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from ioprobe_cli.main import SUMMARIES, cli

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
COMMANDS = [
    line[2:]
    for block in re.findall(r"```console\n(.*?)```", README, re.DOTALL)
    for line in block.splitlines()
    if line.startswith("$ ")
]
FILES = dict(re.findall(r"<!-- file: (\S+) -->\n```\w+\n(.*?)```", README, re.DOTALL))
QUICK = {
    f"IOPROBE_{command}_{option}": value
    for command, option, value in [
        ("ANALYZE", "SECONDS", "4"),
        ("LOADER", "SECONDS", "3"),
        ("STEP", "SECONDS", "1"),
        ("TUNE", "BUDGET", "8"),
        ("STORAGE", "SECONDS", "2"),
    ]
}


def test_the_readme_shows_commands_and_files() -> None:
    assert len(COMMANDS) >= 15
    assert set(FILES) == {"train.py", "ioprobe.toml"}


@pytest.mark.slow
def test_every_command_of_the_readme_runs_in_order(tmp_path: Path) -> None:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    # The console scripts of this environment come first, as in an activated one.
    env = {**os.environ, **QUICK, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    for command in COMMANDS:
        done = subprocess.run(
            shlex.split(command), cwd=tmp_path, env=env, capture_output=True, text=True, timeout=180, check=False
        )
        # Four seconds of measuring may leave a comparison undecided, which is no failure of the command.
        allowed = {0, 2} if command.startswith("ioprobe compare") else {0}
        assert done.returncode in allowed, f"$ {command}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
        assert "Traceback" not in done.stderr, f"$ {command}\n{done.stderr[-2000:]}"


@pytest.mark.parametrize("name", sorted(cli.list_commands(None)))  # type: ignore[arg-type]
def test_every_command_has_help_a_summary_and_a_place_in_the_readme(name: str) -> None:
    result = CliRunner().invoke(cli, [name, "--help"])
    assert result.exit_code == 0
    assert SUMMARIES.get(name), f"'{name}' has no summary in 'ioprobe --help'"
    assert f"ioprobe {name}" in README or f"ioprobe_cli {name}" in README


def test_every_option_can_be_given_by_the_environment_under_its_own_name() -> None:
    for name in cli.list_commands(None):  # type: ignore[arg-type]
        command = cli.get_command(None, name)  # type: ignore[arg-type]
        assert command is not None
        for option in (p for p in command.params if isinstance(p, click.Option)):
            spelled = {o.lstrip("-").replace("-", "_").upper() for o in option.opts}
            assert {f"IOPROBE_{name.upper()}_{one}" for one in spelled} & set(option.envvar or ()), option.opts
    result = CliRunner().invoke(cli, ["rule", "IO101"], env={"IOPROBE_RULE_FORMAT": "json"})
    assert json.loads(result.output)[0]["code"] == "IO101"
    # A name that images use for what they install is no option of every command.
    result = CliRunner().invoke(cli, ["rule", "IO101"], env={"IOPROBE_VERSION": "1"})
    assert "IO101" in result.output
    result = CliRunner().invoke(cli, ["tune", "a.py:b"], env={"IOPROBE_TUNE_BUDGET": "1"})
    assert (result.exit_code, "--budget" in result.output) == (2, True)


def test_make_targets_of_the_readme_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"^make (\w+)", README, re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE)


def test_benchmarks_of_the_readme_exist_and_explain_themselves() -> None:
    def helped(name: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(ROOT / "benchmarks" / name), "--help"]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    names = sorted(set(re.findall(r"`python benchmarks/([\w.]+)", README)))
    assert len(names) >= 15
    with ThreadPoolExecutor(2) as pool:
        for done in pool.map(helped, names):
            assert done.returncode == 0, done.stderr


def test_links_to_files_of_the_repository_resolve() -> None:
    for link in re.findall(r"\]\((?!http)([^)#]+)\)", README):
        assert (ROOT / link).exists(), link


def _tests_of_the_suite() -> set[str]:
    return {
        f"{path.stem}::{node.name}"
        for path in (ROOT / "tests").glob("test_*.py")
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }


def test_every_fault_that_is_told_of_has_its_test() -> None:
    rows = [line for line in (ROOT / "docs" / "faults.md").read_text().splitlines() if line.startswith("| ")]
    rows = [row for row in rows if not row.startswith(("| what happens", "| input"))]
    assert len(rows) >= 45
    suite = _tests_of_the_suite()
    for row in rows:
        named = re.findall(r"`(test_\w+::\w+)`", row.split("|")[-2])
        assert named, f"no test: {row}"
        assert set(named) <= suite, f"no such test: {set(named) - suite}"
