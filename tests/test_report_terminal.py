"""Exact text for the terminal, width pinned.

After a change that is meant: ``python tests/test_report_terminal.py`` writes the
expected texts again; read their difference before it is committed.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import report_examples as examples
from rich.cells import cell_len

from ioprobe.report import terminal

FIXTURES = Path(__file__).parents[1] / "fixtures" / "reports"
CASES = {
    **{f"{name}.80": (name, {"width": 80}) for name in examples.ALL},
    "data_bound.120": ("data_bound", {"width": 120}),
    "data_bound.60": ("data_bound", {"width": 60}),
    "data_bound.80.ascii": ("data_bound", {"width": 80, "unicode": False}),
    "compute_bound.80.color": ("compute_bound", {"width": 80, "color": True}),
}
ANSI = re.compile(r"\x1b\[[0-9;]*m")


@pytest.mark.parametrize("case", CASES)
def test_the_text_is_exactly_this(case: str) -> None:
    name, options = CASES[case]
    expected = (FIXTURES / f"{case}.txt").read_text(encoding="utf-8")
    assert terminal.render(examples.ALL[name](), **options) == expected


def test_the_first_two_lines_hold_the_verdict_and_its_figures() -> None:
    assert terminal.render(examples.data_bound(), width=100).splitlines()[:2] == [
        "DATA-BOUND  limited by decode",
        "Waits for data 58.2% ±1.1 of the time (predicted 57.2% ±3); headroom +139% ±4",
    ]


@pytest.mark.parametrize("width", [60, 80, 100, 120, 200])
@pytest.mark.parametrize("name", [name for name in examples.ALL if name != "hostile"])
def test_no_line_is_wider_than_the_terminal(name: str, width: int) -> None:
    for line in terminal.render(examples.ALL[name](), width=width).splitlines():
        if not line.startswith(("target ", "run file ", "page ")):  # these stay whole, to be copied
            assert cell_len(line) <= width, line
        assert line == line.rstrip()


@pytest.mark.parametrize("name", examples.ALL)
def test_colour_changes_nothing_but_the_colour(name: str) -> None:
    def words_of(text: str) -> list[str]:
        lines = (line.rstrip() for line in ANSI.sub("", text).splitlines())
        return [re.sub("[█▓▒░·]", "#", line) for line in lines]

    report = examples.ALL[name]()
    colored = terminal.render(report, width=80, color=True)
    assert "\x1b[" in colored
    assert words_of(colored) == words_of(terminal.render(report, width=80))


@pytest.mark.parametrize("name", examples.ALL)
def test_without_unicode_every_character_is_ascii(name: str) -> None:
    assert terminal.render(examples.ALL[name](), width=80, unicode=False).isascii()


def test_names_cannot_steer_the_terminal() -> None:
    text = terminal.render(examples.hostile(), width=100)
    assert r"train\x1b[31m</script>" in text
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e]", text)


def test_the_environment_does_not_change_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    before = terminal.render(examples.data_bound(), width=80, color=True)
    for name, value in {"NO_COLOR": "1", "COLUMNS": "40", "TERM": "dumb", "FORCE_COLOR": "1"}.items():
        monkeypatch.setenv(name, value)
    assert terminal.render(examples.data_bound(), width=80, color=True) == before


def test_what_was_not_measured_is_said_and_never_zero() -> None:
    text = terminal.render(examples.partial(), width=80)
    assert "  loader   not measured\n" in text
    assert "(not measured)" in text.splitlines()[1]
    assert not re.search(r"(?<![\d.,])0(?![\d.,])", text.partition("ioprobe analyze")[0])


def test_of_many_ranks_the_late_and_the_slowest_are_shown() -> None:
    text = terminal.render(examples.several_ranks(64), width=100)
    shown = [int(line.split()[0]) for line in text.splitlines() if re.match(r" *\d+  node", line)]
    assert shown == [0, 1, 2, 3, 4, *range(53, 64)]


if __name__ == "__main__":
    for case, (name, options) in CASES.items():
        (FIXTURES / f"{case}.txt").write_text(terminal.render(examples.ALL[name](), **options), encoding="utf-8")
