"""A step under variation: what can be varied, from outside and by the factory itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from ioprobe.analysis.stepping import parse_vary
from ioprobe.errors import UsageError
from ioprobe.probe.step import measure_step
from ioprobe.probe.step_target import ModuleStep, load_step
from ioprobe.probe.step_vary import Variation, Varied


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("batch=0", "a batch of '0' cannot be"),
        ("precision=fp64", "cannot be varied by 'precision=fp64'"),
        ("colour=red", "cannot be varied by 'colour=red'"),
        ("accum=0", "accum=0"),
        ("16,32", "cannot read --vary"),
        ("batch=", "cannot read --vary"),
        ("batch=" + ",".join(map(str, range(1, 70))), "69 rows; at most 64"),
    ],
)
def test_what_cannot_be_varied_is_named(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_vary([text])


def test_a_factory_takes_the_variation_that_it_has_keywords_for() -> None:
    def make(precision: str = "fp32") -> None: ...

    variation = Variation.parse("precision=bf16&compile=on&accum=2")
    assert variation.keywords(make) == {"precision": "bf16"}
    assert variation.without({"precision": "bf16"}) == Variation(accum=2, compile=True)


def test_a_module_is_varied_from_outside_and_a_callable_only_in_part(tmp_path: Path) -> None:
    place = tmp_path / "varied_here.py"
    place.write_text(
        "import torch\n"
        "seen = []\n"
        "def make_net(): return torch.nn.Linear(3, 2)\n"
        "def make_step():\n"
        "    net = torch.nn.Linear(3, 2)\n"
        "    def step(batch): seen.append(net(batch).dtype)\n"
        "    return step\n"
        "def make_own(accum=1):\n"
        "    return lambda batch: seen.append(accum)\n"
    )
    cpu, batch = torch.device("cpu"), torch.ones(2, 3)
    net = load_step(f"{place}:make_net?precision=bf16&accum=4", cpu)
    assert isinstance(net, ModuleStep)
    assert (net.dtype, net.accumulate) == (torch.bfloat16, 4)
    step = load_step(f"{place}:make_step?precision=bf16", cpu)
    assert isinstance(step, Varied)
    step(batch)
    load_step(f"{place}:make_own?accum=8", cpu)(batch)
    import varied_here  # type: ignore[import-not-found]

    assert varied_here.seen == [torch.bfloat16, 8]
    with pytest.raises(UsageError, match="accumulation cannot be set from outside"):
        load_step(f"{place}:make_step?accum=2", cpu)


def test_a_varied_step_keeps_its_sync() -> None:
    class Asynchronous:
        def __call__(self, batch: Any) -> None: ...
        def sync(self) -> str:
            return "done"

    varied = Variation(precision="bf16").wrap(Asynchronous(), "t.py:make", torch.device("cpu"))
    assert varied.sync() == "done"  # type: ignore[attr-defined]


def test_optimizer_steps_are_counted_as_they_happen() -> None:
    step = ModuleStep(torch.nn.Linear(3, 2), torch.device("cpu"), accumulate=4)
    found = measure_step(step, torch.ones(2, 3), seconds=0.05, samples=2, trace=False)
    assert found.updates_per_step == 0.25
    plain = measure_step(lambda batch: None, None, seconds=0.01, samples=2, trace=False)
    assert plain.updates_per_step is None
