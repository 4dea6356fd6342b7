"""What the hooks inside a job do: phases, the journal, acting on an import."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ioprobe.live.hooks.finder import AfterImport
from ioprobe.live.hooks.journal import Journal, read_records
from ioprobe.live.hooks.phases import CACHED, DONE, DRAIN, OBSERVE, TRACE, Phases


def test_phases_change_after_counts_of_the_training_loader() -> None:
    plan = Phases(2, ["observe", "cached", "drain"], 0, "stop")
    plan.count(7, training=False)
    plan.count(9, training=True)
    assert plan.now == OBSERVE
    plan.count(9, training=True)
    assert (plan.lead, plan.now, plan.left) == (9, CACHED, 2)
    plan.advance()
    assert plan.now == DRAIN
    plan.advance()
    assert plan.now == DONE
    assert plan.stops


def test_without_a_count_everything_is_observed_and_a_trace_comes_early() -> None:
    plan = Phases(None, ["observe"], 0, "continue")
    for _ in range(5000):
        plan.count(1, training=True)
    assert plan.now == OBSERVE
    plan = Phases(None, ["observe"], 3, "continue")
    for _ in range(12):
        plan.count(1, training=True)
    assert plan.now == TRACE
    plan.advance()
    assert plan.now == OBSERVE


def test_a_journal_cut_short_gives_its_whole_records(tmp_path: Path) -> None:
    journal = Journal(str(tmp_path / "1.rec"))
    journal.write({"kind": "a"}, {"x": [1.0, 2.0]})
    journal.write({"kind": "b"}, {"y": [3.0]})
    journal.close()
    data = (tmp_path / "1.rec").read_bytes()
    assert [(r.head["kind"], r.columns) for r in read_records(data)] == [("a", {"x": [1.0, 2.0]}), ("b", {"y": [3.0]})]
    assert [r.head["kind"] for r in read_records(data[:-1])] == ["a"]
    assert list(read_records(b"\xff" * 64)) == []


def test_a_module_is_acted_on_after_its_first_import_and_keeps_its_own_loader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "watched_module.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    seen: list[int] = []
    finder = AfterImport({"watched_module": lambda: seen.append(sys.modules["watched_module"].value)})
    finder.install()
    module = __import__("watched_module")
    assert seen == [1]
    assert type(module.__loader__).__name__ == "SourceFileLoader"
    assert module.__spec__.loader is module.__loader__
    assert finder not in sys.meta_path
    del sys.modules["watched_module"]
