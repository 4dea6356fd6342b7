"""What all renderers say alike."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import report_examples as examples
from msgspec.structs import replace

from ioprobe.diagnosis.types import Advice, Report, Verdict
from ioprobe.report import bars, html, markdown, terminal, words
from ioprobe.stats import Estimate, exact


def tip(gain: Estimate | None, verified: Estimate | None) -> Advice:
    return Advice(code="IO101", action="a", because="b", gain=gain, verified=verified)


@pytest.mark.parametrize(
    ("gain", "verified", "text", "missed"),
    [
        (Estimate(0.9, 0.8, 1.0), Estimate(0.95, 0.9, 1.0), "verified +95% ±5, as predicted", False),
        (Estimate(0.9, 0.8, 1.0), Estimate(0.2, 0.1, 0.3), "MISSED: verified +20% ±10, less than predicted", True),
        (Estimate(0.1, 0.05, 0.15), Estimate(0.9, 0.8, 1.0), "MISSED: verified +90% ±10, more than predicted", True),
        (Estimate(0.03, -0.02, 0.08), Estimate(0.0, -0.01, 0.01), "verified ±0% ±1, not told from noise", False),
        (exact(1.0), Estimate(0.98, 0.975, 0.985), "verified +98% ±0.5, as predicted", False),
        (None, Estimate(0.2, 0.1, 0.3), "verified +20% ±10", False),
        (Estimate(0.9, 0.8, 1.0), None, "not verified by a run", False),
    ],
)
def test_a_prediction_is_judged_by_the_real_run(
    gain: Estimate | None, verified: Estimate | None, text: str, missed: bool
) -> None:
    assert words.verification(tip(gain, verified)) == (text, missed)


@pytest.mark.parametrize(
    ("estimate", "text"),
    [
        (Estimate(0.5, 0.5, 0.5), "50.0%"),
        (Estimate(0.5, 0.45, 0.55), "50.0% ±5"),
        (Estimate(0.01, 0.0, 0.2), "1.0% (0.0% to 20.0%)"),
        (None, "not measured"),
    ],
)
def test_an_interval_is_shown_as_it_is(estimate: Estimate | None, text: str) -> None:
    assert words.share(estimate) == text


def test_an_interval_without_an_end_says_at_least() -> None:
    assert words.rate_parts(Estimate(100.0, 80.0, math.inf)) == ("100", "(at least 80)")


def test_control_characters_of_every_kind_are_escaped() -> None:
    text = "".join(map(chr, [*range(0x20), *range(0x7F, 0xA0), 0x200B, 0x2028, 0x202E, 0x2066, 0xFEFF, 0xE000]))
    cleaned = words.clean(text)
    assert cleaned.isascii()
    assert cleaned.isprintable()
    assert words.clean("nœud 名前 é") == "nœud 名前 é"


def test_an_axis_keeps_every_rate_inside() -> None:
    for values in ([1.0], [5.0, 6.0], [0.001, 90_000.0], [0.0], []):
        axis = bars.rate_axis(values)
        assert all(0.0 <= axis.place(value) <= 1.0 for value in [*values, math.inf, -1.0])
        assert all(0.0 <= axis.place(tick) <= 1.0 for tick in axis.ticks())


def test_the_lowest_rung_stays_visible_on_a_logarithmic_axis() -> None:
    axis = bars.rate_axis([219.0, 31_900.0])
    assert axis.log
    assert 0.05 < axis.place(219.0) < axis.place(400.0) < axis.place(31_900.0) == 1.0


def test_every_judgement_has_a_sentence() -> None:
    from ioprobe.diagnosis.types import Advice
    from ioprobe.report import words
    from ioprobe.stats import Estimate

    wide = Advice(
        code="IO601", action="", because="", gain=Estimate(0.1, -0.9, 1.2, 9), verified=Estimate(0.8, 0.6, 1.0, 9)
    )
    assert words.judgement(wide) == "wide"
    for word in ("less", "more", "noise", "wide", "held"):
        assert words.JUDGEMENTS[word]


@pytest.mark.parametrize("render", [terminal.render, markdown.render, html.render])
def test_a_loader_alone_without_a_verdict_is_headed_as_what_it_is(render: Callable[[Report], str]) -> None:
    report = examples.plain()
    assert (report.kind, report.diagnosis.verdict) == ("loader", Verdict.UNDECIDED)
    assert "drained alone" in render(report)
    assert "the measurement cannot carry a verdict" not in render(report)
    assert "the measurement cannot carry a verdict" in render(replace(report, kind="analyze"))
