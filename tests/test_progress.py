"""Progress: one line on a terminal, nothing anywhere else."""

from __future__ import annotations

import io
import sys

import pytest

from ioprobe_cli.progress import Progress, progress


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class Terminal(io.TextIOWrapper):
    """A stream that says it is a terminal and keeps what is written."""

    def __init__(self, encoding: str = "utf-8") -> None:
        self.kept = io.BytesIO()
        super().__init__(self.kept, encoding=encoding, write_through=True)

    def isatty(self) -> bool:
        return True

    @property
    def said(self) -> str:
        return self.kept.getvalue().decode(self.encoding)


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "80")


def test_the_line_says_what_runs_and_how_long_it_may_take() -> None:
    screen = Terminal()
    with Progress(stream=screen, clock=Clock()) as show:
        show("loader alone", 3.0, 12.0)
    bar = "━" * 5 + "─" * 14
    assert screen.said == f"\r⠙ loader alone  {bar}  3 s of about 12 s\x1b[K\r\x1b[K"


def test_a_line_is_drawn_again_only_when_it_is_old_or_its_text_is_new() -> None:
    screen, clock = Terminal(), Clock()
    show = Progress(stream=screen, clock=clock)
    show("storage", 0.0, 5.0)
    show("storage", 0.05, 5.0)
    assert screen.said.count("\r") == 1
    clock.now_s = 0.2
    show("storage", 0.2, 5.0)
    show("loader", 0.0, 5.0)
    assert screen.said.count("\r") == 3


def test_a_line_never_fills_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    screen = Terminal()
    show = Progress(stream=screen, clock=Clock())
    show("a very long name of a thing that is measured, " * 4, 70.0, 10.0)
    line = screen.said.removeprefix("\r").removesuffix("\x1b[K")
    assert len(line) <= 59
    assert line.endswith("1 min 10 s, longer than the expected 10 s")


def test_an_unknown_duration_has_no_bar() -> None:
    screen = Terminal()
    Progress(stream=screen, clock=Clock())("waiting for the first batch", 4.0, 0.0)
    assert screen.said == "\r⠙ waiting for the first batch  4 s\x1b[K"


def test_an_ascii_terminal_gets_ascii() -> None:
    screen = Terminal("ascii")
    Progress(stream=screen, clock=Clock())("loader", 1.0, 2.0)
    assert screen.said == "\r\\ loader  " + "#" * 10 + "-" * 9 + "  1 s of about 2 s\x1b[K"


def test_control_characters_in_a_name_do_not_reach_the_terminal() -> None:
    screen = Terminal()
    Progress(stream=screen, clock=Clock())("train\x1b[2J\n.py", 1.0, 0.0)
    assert "train?[2J?.py" in screen.said


def test_a_dumb_terminal_gets_one_line_for_each_thing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    screen, clock = Terminal(), Clock()
    with Progress(stream=screen, clock=clock) as show:
        show("storage", 0.0, 5.0)
        clock.now_s = 3.0
        show("storage", 3.0, 5.0)
        show("loader", 0.0, 9.0)
    assert screen.said == "storage 0 s of about 5 s\nloader 0 s of about 9 s\n"


def test_a_note_stays_on_a_line_of_its_own() -> None:
    screen = Terminal()
    with Progress(stream=screen, clock=Clock()) as show:
        show("loader", 0.0, 0.0)
        show.note("saved run.json")
    assert screen.said.endswith("\x1b[K\r\x1b[Ksaved run.json\n")


@pytest.mark.parametrize(("terminal", "quiet"), [(False, False), (True, True), (False, True)])
def test_nothing_is_written_with_quiet_or_without_a_terminal(
    monkeypatch: pytest.MonkeyPatch, terminal: bool, quiet: bool
) -> None:
    screen = Terminal()
    monkeypatch.setattr(screen, "isatty", lambda: terminal)
    monkeypatch.setattr(sys, "stderr", screen)
    with progress(quiet=quiet) as show:
        show("loader", 1.0, 2.0)
        show.note("saved")
    assert screen.said == ""


@pytest.mark.parametrize(("no_color", "colored"), [("", True), ("1", False)])
def test_no_color_takes_the_colours_away(monkeypatch: pytest.MonkeyPatch, no_color: str, colored: bool) -> None:
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("NO_COLOR", no_color)
    with progress() as show:
        show("loader", 1.0, 2.0)
    assert ("\x1b[36m" in screen.said) is colored
    assert "loader" in screen.said


def test_a_terminal_that_went_away_does_not_end_the_measurement() -> None:
    class Gone(Terminal):
        def write(self, text: str) -> int:
            raise OSError(5, "Input/output error")

    with Progress(stream=Gone(), clock=Clock()) as show:
        show("loader", 1.0, 2.0)
        show("step", 1.0, 2.0)
