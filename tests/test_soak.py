"""The soak benchmark finds what grows, and nothing in what merely varies."""

from __future__ import annotations

import importlib.util
import random
import sys
from pathlib import Path
from typing import Any

import pytest

PATH = Path(__file__).parents[1] / "benchmarks" / "soak.py"


@pytest.fixture(scope="module")
def soak() -> Any:
    spec = importlib.util.spec_from_file_location("soak_benchmark", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def samples(soak: Any, kind: str, values: list[float]) -> list[Any]:
    return [soak.Sample("library", kind, 20.0 * number, value) for number, value in enumerate(values)]


def test_a_leak_is_found_under_noise_and_noise_alone_is_none(soak: Any, capsys: pytest.CaptureFixture[str]) -> None:
    chance = random.Random(1)
    noise = [chance.gauss(300, 1.0) for _ in range(80)]
    assert soak.report(samples(soak, soak.MEMORY, noise)) == 0
    assert soak.report(samples(soak, soak.MEMORY, [mib + 0.1 * n for n, mib in enumerate(noise)])) == 1
    assert "| library | memory [MiB] |" in capsys.readouterr().out


def test_a_descriptor_a_round_is_found_and_what_filled_up_during_the_warm_up_is_not(soak: Any) -> None:
    assert soak.report(samples(soak, "descriptors", [40.0 + n for n in range(12)])) == 1
    assert soak.report(samples(soak, "descriptors", [40.0, 48.0] + [50.0 + n % 2 for n in range(10)])) == 0


def test_too_few_rounds_are_no_verdict(soak: Any) -> None:
    with pytest.raises(SystemExit, match="only 6 rounds after the warm-up; 8 are needed"):
        soak.report(samples(soak, "threads", [3.0] * 7))
