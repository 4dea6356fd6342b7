"""Imports run one way; the table below is the design."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "ioprobe"

# room -> rooms of ioprobe it may import. A room is a top-level module or folder of the package.
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "units": {"errors"},
    "stats": {"errors"},
    "plausible": set(),
    "secrets": set(),
    "run": {"errors", "plausible"},
    "config": {"errors", "units", "run"},
    "facts": {"errors"},
    "data": {"errors", "secrets", "units", "run", "config"},
    "instrument": {"errors", "run"},
    "probe": {"errors", "secrets", "units", "stats", "run", "config", "facts", "data", "instrument"},
    "live": {"errors", "secrets", "units", "stats", "run", "config", "facts", "instrument", "probe", "watching"},
    "model": {"errors", "stats", "run", "units"},
    "diagnosis": {"errors", "plausible", "stats", "run", "units", "config", "facts", "model"},
    "report": {"errors", "stats", "run", "units", "diagnosis"},
    "planning": {"errors", "units", "run", "data", "model", "diagnosis"},
    "check": {
        "errors",
        "secrets",
        "units",
        "stats",
        "run",
        "config",
        "facts",
        "data",
        "instrument",
        "probe",
        "model",
        "diagnosis",
        "analysis",
    },
    "pytest_plugin": {"errors", "config", "check", "diagnosis", "report"},
    "watching": {"errors", "run", "instrument"},
    "integrations": {"errors", "watching"},
    "analysis": {
        "errors",
        "secrets",
        "units",
        "stats",
        "run",
        "config",
        "facts",
        "data",
        "probe",
        "live",
        "model",
        "diagnosis",
    },
}
# Pure rooms touch neither the world nor heavy packages.
PURE = {"model", "diagnosis", "report", "stats", "units"}
FORBIDDEN_IN_PURE = {
    "torch",
    "pyarrow",
    "webdataset",
    "fsspec",
    "psutil",
    "subprocess",
    "socket",
    "time",
    "os",
    "click",
}
FORBIDDEN_IN_LIBRARY = {"click", "ioprobe_cli"}


def room_of(path: Path) -> str:
    first = path.relative_to(PACKAGE).parts[0]
    return first.removesuffix(".py")


def imports_of(path: Path) -> list[tuple[str, bool]]:
    """Imported modules of a file, with True where the import is at module level."""
    tree = ast.parse(path.read_text())
    top = {id(n) for n in ast.walk(tree) if isinstance(n, (ast.Import, ast.ImportFrom)) and n in tree.body}
    found: list[tuple[str, bool]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(alias.name, id(node) in top) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            if node.module == "ioprobe":
                found += [(f"ioprobe.{alias.name}", id(node) in top) for alias in node.names]
            else:
                found.append((node.module, id(node) in top))
    return found


FILES = sorted(p for p in PACKAGE.rglob("*.py") if p != PACKAGE / "__init__.py")


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_run_one_way(path: Path) -> None:
    room = room_of(path)
    assert room in ALLOWED, f"'{room}' is a new room: give it a row in the table"
    for module, _ in imports_of(path):
        head = module.split(".")
        assert head[0] not in FORBIDDEN_IN_LIBRARY, f"{path}: the library may not import {module}"
        if head[0] == "ioprobe" and len(head) > 1 and head[1] != "__version__":
            assert head[1] == room or head[1] in ALLOWED[room], f"{path}: '{room}' may not import '{module}'"
        if room in PURE:
            assert head[0] not in FORBIDDEN_IN_PURE, f"{path}: pure room imports {module}"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_the_library_never_prints_or_exits(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            assert name not in {"print", "sys.exit", "exit", "quit"}, f"{path}:{node.lineno} calls {name}"


def test_help_pulls_no_heavy_package() -> None:
    code = (
        "import sys; from ioprobe_cli.main import run; run(['--help']);"
        "bad = {'torch', 'pyarrow', 'numpy', 'rich', 'webdataset'} & set(sys.modules); assert not bad, bad"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


def test_import_ioprobe_pulls_no_heavy_package() -> None:
    code = "import sys, ioprobe; bad = {'torch', 'pyarrow', 'numpy'} & set(sys.modules); assert not bad, bad"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_what_travels_into_a_job_needs_the_standard_library_alone() -> None:
    hooks = PACKAGE / "live" / "hooks"
    names = [f"ioprobe.live.hooks.{p.stem}" for p in sorted(hooks.glob("*.py")) if p.stem != "__init__"]
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import {', '.join(names)}"
    subprocess.run([sys.executable, "-I", "-S", "-c", code], check=True)
