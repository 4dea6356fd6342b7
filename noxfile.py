"""The versions that ioprobe is meant for: ``pip install nox``, then ``nox --list``.

nox -s tests                    every Python found here, with each torch that has wheels for it
nox -s "tests(python='3.12', torch='2.9.1')" -- tests/test_stages.py
nox -s without_torch            what must work without torch, on every Python found here
nox -s lint audit

A Python that this machine lacks is skipped by nox (an error in CI); pyenv offers those that PYENV_VERSION names, as
3.10.13:3.13.0. PIP_INDEX_URL or PIP_EXTRA_INDEX_URL chooses where torch comes from: the CPU builds of the PyTorch
project will do for all tests.
"""

from __future__ import annotations

import nox

PYTHONS = ["3.10", "3.11", "3.12", "3.13", "3.14"]
TORCHES = {
    "2.4.1": ["3.10", "3.11", "3.12"],
    "2.6.0": ["3.10", "3.11", "3.12", "3.13"],
    "2.9.1": PYTHONS,
    "2.13.0": PYTHONS,
    "2.15.0": PYTHONS[1:],
}
"""torch -> the Pythons that it has wheels for: the oldest that is promised, the newest, and some between."""
WITHOUT_TORCH = [
    "architecture", "budgets", "cli_predict", "cli_profile", "cli_report", "cli_schema", "compare", "config",
    "data_urls", "diagnosis_verdict", "facts", "fuzz_files", "model_laws", "model_predict", "model_simulate",
    "output", "plan", "recorded_verdicts", "report_check", "report_json", "report_markdown", "report_plan",
    "report_terminal", "report_utilization", "report_words", "rules", "stages",
]  # fmt: skip
"""Tests of the pure rooms, and of the commands that only read."""
NEEDED_BY_TESTS = ["pytest", "hypothesis", "junitparser", "sarif-pydantic"]

nox.options.sessions = ["lint", "without_torch", "tests"]
nox.options.default_venv_backend = "venv"


@nox.session
@nox.parametrize("python, torch", [(python, torch) for torch, pythons in TORCHES.items() for python in pythons])
def tests(session: nox.Session, torch: str) -> None:
    """The whole suite, or what follows ``--``."""
    session.install(f"torch=={torch}", "-e", ".[test]")
    session.run("pytest", *session.posargs)


@nox.session(python=PYTHONS)
def without_torch(session: nox.Session) -> None:
    """A laptop that only reads runs needs no torch."""
    needed = nox.project.load_toml("pyproject.toml")["project"]["dependencies"]
    session.install(*[one for one in needed if not one.startswith("torch")], *NEEDED_BY_TESTS)
    session.install("--no-deps", "-e", ".")
    session.run("pytest", *(session.posargs or [f"tests/test_{name}.py" for name in WITHOUT_TORCH]))


@nox.session
def lint(session: nox.Session) -> None:
    """Style and types, both as of Python 3.10."""
    session.install("-c", "constraints.txt", "-e", ".[test]")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("mypy")


@nox.session
def audit(session: nox.Session) -> None:
    """Known vulnerabilities of all that ioprobe and its tests install; what cannot be looked up fails, too."""
    project = nox.project.load_toml("pyproject.toml")["project"]
    session.install(*project["dependencies"], *project["optional-dependencies"]["test"], "pip-audit")
    session.run("pip-audit", "--strict", "--progress-spinner", "off")
