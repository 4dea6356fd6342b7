"""Shared memory that dead workers left: what is removed, and that a long-lived process keeps nothing of it."""

from __future__ import annotations

import gc
import sys
from pathlib import Path

import pytest

from ioprobe.probe import segments


def test_only_the_segments_of_the_processes_named_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "_SHM", tmp_path)
    others = {"torch_1_5", "torch_123_9", "torch_12", "sem.torch_12_4", "12_4", "torch_12x_1"}
    for name in others | {"torch_12_4", "torch_12_4_5", "torch_7_1"}:
        (tmp_path / name).touch()
    segments.remove_segments(pid for pid in (12, 7))
    assert {path.name for path in tmp_path.iterdir()} == others


def test_no_process_that_ended_is_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "_SHM", tmp_path)
    ended, few = 2000, 100
    segments.remove_segments([1])
    gc.collect()
    before = sys.getallocatedblocks()
    for pid in range(1000, 1000 + ended):
        segments.remove_segments([pid])
    gc.collect()
    assert sys.getallocatedblocks() - before < few
