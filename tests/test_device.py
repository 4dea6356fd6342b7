"""The accelerator through every interface that torch has had, without having one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ioprobe.probe.device import current_device, device_names, synchronize, timing_event


def accelerator(built_for: str, works: bool, knows_check: bool = True) -> Any:
    def with_check(check_available: bool = False) -> Any:
        return None if check_available and not works else torch.device(built_for)

    def without_check() -> Any:
        return torch.device(built_for)

    return SimpleNamespace(current_accelerator=with_check if knows_check else without_check, is_available=lambda: works)


@pytest.mark.parametrize("knows_check", [True, False])
@pytest.mark.parametrize(("works", "found"), [(True, "cuda"), (False, "cpu")])
def test_a_build_for_an_accelerator_that_is_not_there_runs_on_the_cpu(
    monkeypatch: pytest.MonkeyPatch, knows_check: bool, works: bool, found: str
) -> None:
    monkeypatch.setattr(torch, "accelerator", accelerator("cuda", works, knows_check), raising=False)
    assert current_device().type == found


@pytest.mark.parametrize(("works", "found"), [(True, "cuda"), (False, "cpu")])
def test_torch_before_its_accelerator_module_is_asked_by_kind(
    monkeypatch: pytest.MonkeyPatch, works: bool, found: str
) -> None:
    monkeypatch.delattr(torch, "accelerator", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: works)
    for kind in (torch.xpu, torch.backends.mps):
        monkeypatch.setattr(kind, "is_available", lambda: False)
    monkeypatch.delattr(torch.mps, "is_available", raising=False)  # torch 2.4 has none there
    assert current_device().type == found


def test_the_cpu_has_no_name_and_nothing_to_wait_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "accelerator", accelerator("cuda", False), raising=False)
    assert device_names() == []
    synchronize(torch.device("cpu"))


def test_accelerators_are_named_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "accelerator", accelerator("cuda", True), raising=False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: f"GPU {index}")
    assert device_names() == ["GPU 0", "GPU 1"]


def test_waiting_and_timing_go_to_the_devices_own_module(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: seen.append("synchronized"))
    monkeypatch.setattr(torch.cuda, "Event", lambda enable_timing: seen.append(f"event {enable_timing}"))
    synchronize(torch.device("cuda"))
    timing_event(torch.device("cuda"))
    assert seen == ["synchronized", "event True"]
