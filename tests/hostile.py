"""Hostile input, made the same way each time; ``IOPROBE_FUZZ=5000`` looks further, at random, by hand."""

from __future__ import annotations

import contextlib
import copy
import io
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from ioprobe.errors import IoprobeError
from ioprobe_cli.main import run

_LOOK_FURTHER = int(os.environ.get("IOPROBE_FUZZ", "0"))
ROOM_BYTES = 3 << 30
"""Address space of a child that reads what is meant to fill memory: torch and pyarrow alone map more than one GiB."""

WORDS = [
    "", "x" * 4000, "</script><script>alert(1)</script>", "\x1b[31m\x1b]0;title\x07", "[red]r[/red][/]", "a\nb\rc",
    "\x00", "\u202e\u2028", "\ud800", "{{ 7 * 7 }}", "../../etc/passwd", "nan", "-inf", "1e999", "9" * 5000, "=1+1",
]  # fmt: skip
NUMBERS = [0, -1, 1, 2, 0.5, -0.0, 1e-300, 1e308, -1e308, 2**31, 2**53 + 1, 2**63 - 1, 2**63, -(2**70), 10**18]
VALUES = st.one_of(
    st.sampled_from([None, True, False, [], {}, [[]], [None], {"": None}]),
    st.sampled_from(WORDS),
    st.sampled_from(NUMBERS),
)


def fuzz(examples: int) -> Callable[[Any], Any]:
    """Decorate a property: the same examples in every run of the suite."""
    return settings(
        max_examples=_LOOK_FURTHER or examples,
        derandomize=not _LOOK_FURTHER,
        database=None,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture],
    )


def refused_or_read(read: Callable[[], object]) -> None:
    """Call; the only exception that may come out is one that says in one line what is wrong."""
    said = "nothing"
    try:
        read()
    except IoprobeError as error:
        said = error.message
    assert said
    assert "\n" not in said


def command(*args: str) -> tuple[int, str, str]:
    """Run a command in this process; returns exit code, stdout and stderr. A bug of ours fails the test."""
    out, err = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run(list(args))
    out.flush()
    text = out.buffer.getvalue().decode("utf-8", "surrogatepass")  # type: ignore[attr-defined]
    assert "internal error" not in err.getvalue(), err.getvalue()
    assert code in (0, 1, 2)
    return code, text, err.getvalue()


@st.composite
def changed(draw: st.DrawFn, tree: Any, most: int = 4) -> Any:
    """A JSON tree with up to ``most`` places changed, removed, repeated or exchanged."""
    tree = copy.deepcopy(tree)
    for _ in range(draw(st.integers(1, most))):
        holder, key = tree, None
        while isinstance(holder, (dict, list)) and holder:
            key = draw(
                st.sampled_from(sorted(holder) if isinstance(holder, dict) else list(range(min(len(holder), 8))))
            )
            inner = holder[key]
            if not isinstance(inner, (dict, list)) or not inner or draw(st.integers(0, 3)) == 0:
                break
            holder = inner
        if key is None:
            return copy.deepcopy(draw(VALUES))
        how = draw(st.sampled_from(["value", "value", "value", "drop", "twice", "wrap"]))
        if how == "value":
            holder[key] = copy.deepcopy(draw(VALUES))  # what was drawn is shared
        elif how == "drop":
            del holder[key]
        elif how == "twice" and isinstance(holder, list):
            holder.insert(key, copy.deepcopy(holder[key]))
        elif how == "wrap":
            holder[key] = [holder[key]]
    return tree


@st.composite
def damaged(draw: st.DrawFn, data: bytes, most: int = 6) -> bytes:
    """Bytes with some of them changed, cut, repeated or inserted."""
    for _ in range(draw(st.integers(1, most))):
        at = draw(st.integers(0, max(0, len(data) - 1)))
        length = draw(st.sampled_from([1, 1, 1, 2, 4, 8, 64, 512]))
        how = draw(st.sampled_from(["set", "set", "cut", "insert", "twice", "end"]))
        if how == "set":
            data = data[:at] + draw(st.binary(min_size=length, max_size=length)) + data[at + length :]
        elif how == "cut":
            data = data[:at] + data[at + length :]
        elif how == "insert":
            data = data[:at] + draw(st.binary(min_size=1, max_size=length)) + data[at:]
        elif how == "twice":
            data = data[: at + length] + data[at : at + length] + data[at + length :]
        else:
            data = data[:at]
    return data


def within_bounds(code: str, folder: Path, cpu_s: int = 20) -> str:
    """Run Python code where memory and CPU are bounded; returns what it printed. Exceeding either fails the test."""

    def bound() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (ROOM_BYTES, ROOM_BYTES))
        resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 1))

    ended = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, preexec_fn=bound, check=False
    )
    assert ended.returncode == 0, f"exit code {ended.returncode}: {ended.stderr[-2000:]}"
    return ended.stdout
