"""Words and numbers that every renderer shares, so that all formats say the same.

Renderers turn a finished :class:`~ioprobe.diagnosis.types.Report` into text.
Nothing here measures, reads a clock or asks the terminal.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Callable

from ioprobe.diagnosis.types import Advice, Report, Verdict
from ioprobe.run import HotFrame, LoaderSettings
from ioprobe.stats import Estimate
from ioprobe.units import NOT_MEASURED, format_bytes, format_count, format_flops, format_seconds, format_share

_PLAIN_WORD = re.compile(r"[a-z]+(?=[ ,;:]|$)")

UNMEASURED = "–"
"""Stands in tables for *not measured*; each renderer explains it."""


def clean(text: str) -> str:
    r"""Return text that cannot steer a terminal: what does not print is escaped.

    Names come from datasets and from other people's code. Escape sequences,
    newlines and bidirectional overrides in them must not act.

    >>> clean("a\x1b[31mb\nc")
    'a\\x1b[31mb\\nc'
    """
    if text.isprintable():
        return text
    return "".join(_escape(char) for char in text)


def _escape(char: str) -> str:
    if char.isprintable():
        return char
    if unicodedata.category(char) == "Zs":
        return " "
    return char.encode("unicode_escape").decode("ascii")


def capital(text: str) -> str:
    """Return a sentence with its first letter as a capital, unless it begins with a name from code.

    >>> capital("decode takes 9 ms"), capital("num_workers=8 idles"), capital("train.py:41 raises")
    ('Decode takes 9 ms', 'num_workers=8 idles', 'train.py:41 raises')
    """
    return text[:1].upper() + text[1:] if _PLAIN_WORD.match(text) else text


def sentence(text: str) -> str:
    """Return text as a sentence: a capital in front, a full stop behind.

    >>> sentence("six batches are too few")
    'Six batches are too few.'
    """
    text = capital(text.strip())
    return text if text.endswith((".", "!", "?", ":")) else text + "."


def _known(estimate: Estimate) -> bool:
    return estimate.low < estimate.high


def _lopsided(estimate: Estimate) -> bool:
    below, above = estimate.value - estimate.low, estimate.high - estimate.value
    return not math.isfinite(above + below) or min(above, below) < 0.5 * max(above, below)


def _interval(estimate: Estimate, form: Callable[[float], str], half: Callable[[Estimate], str]) -> str:
    if not _known(estimate):
        return ""
    if not math.isfinite(estimate.high):
        return f"(at least {form(estimate.low)})"
    if _lopsided(estimate):
        return f"({form(estimate.low)} to {form(estimate.high)})"
    return half(estimate)


def _small(number: float) -> str:
    """Return a half-width with the digits that matter.

    >>> _small(0.0001), _small(0.04), _small(2.34), _small(23.4)
    ('<0.01', '0.04', '2.3', '23')
    """
    if number < 0.095:
        return "<0.01" if number < 0.005 else f"{number:.2f}"
    return f"{number:.1f}".removesuffix(".0") if number < 9.95 else f"{number:.0f}"


def rate_parts(estimate: Estimate | None) -> tuple[str, str]:
    """Return a rate and its interval as two texts; the interval is empty where it is not known.

    >>> rate_parts(Estimate(219.0, 214.0, 224.0, 40))
    ('219', '±2.3%')
    >>> rate_parts(Estimate(500.0, 500.0, 500.0)), rate_parts(None)
    (('500', ''), ('not measured', ''))
    """
    if estimate is None:
        return NOT_MEASURED, ""
    interval = _interval(estimate, format_count, lambda e: f"±{_small(100 * e.relative_halfwidth)}%")
    return format_count(estimate.value), interval


def rate(estimate: Estimate | None, unit: str = "samples") -> str:
    """Return a rate with its unit and interval in one text.

    >>> rate(Estimate(219.0, 214.0, 224.0, 40))
    '219 samples/s ±2.3%'
    """
    value, interval = rate_parts(estimate)
    if estimate is None:
        return value
    return f"{value} {unit}/s {interval}".rstrip()


def share(estimate: Estimate | None) -> str:
    """Return a fraction of 1 as percent, its half-width in percentage points.

    >>> share(Estimate(0.582, 0.571, 0.593, 40)), share(Estimate(0.0, 0.0, 0.02, 40))
    ('58.2% ±1.1', '0.0% (0.0% to 2.0%)')
    """
    if estimate is None:
        return NOT_MEASURED
    interval = _interval(estimate, format_share, lambda e: f"±{_small(50 * (e.high - e.low))}")
    return f"{format_share(estimate.value)} {interval}".rstrip()


def percent_change(value: float) -> str:
    """Return a fraction as a signed percentage.

    >>> percent_change(1.392), percent_change(-0.034), percent_change(0.0004)
    ('+139%', '-3.4%', '±0%')
    """
    number = 100 * value
    if not math.isfinite(number):
        return "unbounded"
    if abs(number) < 0.05:
        return "±0%"
    return f"{number:+.1f}%".replace(".0%", "%") if abs(number) < 9.95 else f"{number:+,.0f}%"


def gain(estimate: Estimate | None) -> str:
    """Return a gain with its interval in percentage points.

    >>> gain(Estimate(0.98, 0.91, 1.05, 30)), gain(None)
    ('+98% ±7', 'not measured')
    """
    if estimate is None:
        return NOT_MEASURED
    interval = _interval(estimate, percent_change, lambda e: f"±{_small(50 * (e.high - e.low))}")
    return f"{percent_change(estimate.value)} {interval}".rstrip()


AGREE_WITHIN = 0.02
"""Throughputs that differ by less than this [fraction] agree, however narrow their intervals: runs repeat no better."""

JUDGEMENTS = {
    "": "",
    "less": "The prediction missed: the real run gained less.",
    "more": "The prediction missed: the real run gained more.",
    "noise": "The real run cannot tell this gain from noise.",
    "held": "The real run agreed with the prediction.",
    "wide": "The real run lies within the prediction's wide interval, far from its middle.",
}
"""What a real run said of a prediction, by the word that ``judgement`` returns."""


def judgement(advice: Advice) -> str:
    """Return ``less`` or ``more`` (missed), ``noise``, ``wide``, ``held``, or nothing where a gain is missing.

    A miss is a verified gain whose interval does not touch the predicted one.

    >>> tip = Advice(code="IO101", action="", because="", gain=Estimate(0.9, 0.8, 1.0, 9))
    >>> judgement(tip)
    ''
    """
    predicted, verified = advice.gain, advice.verified
    if predicted is None or verified is None:
        return ""
    slack = AGREE_WITHIN * (1 + max(0.0, predicted.value))
    if verified.high < predicted.low - slack:
        return "less"
    if verified.low > predicted.high + slack:
        return "more"
    if predicted.value > 0 and verified.low <= 0 <= verified.high:
        return "noise"
    # Intervals so wide that they touch whatever happens confirm nothing.
    if abs(verified.value - predicted.value) > max(0.1, 0.3 * abs(predicted.value)):
        return "wide"
    return "held"


def verification(advice: Advice) -> tuple[str, bool]:
    """Return what a real run at the advised settings said, and whether the prediction missed.

    >>> tip = Advice(code="IO101", action="", because="", gain=Estimate(0.9, 0.8, 1.0, 9))
    >>> verification(tip)
    ('not verified by a run', False)
    """
    if advice.verified is None:
        return "not verified by a run", False
    said = f"verified {gain(advice.verified)}"
    judged = judgement(advice)
    if judged in ("less", "more"):
        return f"MISSED: {said}, {judged} than predicted", True
    return said + {
        "noise": ", not told from noise",
        "held": ", as predicted",
        "wide": ", within its wide interval",
    }.get(judged, ""), False


VERDICT_CLAUSES = {
    Verdict.DATA_BOUND: ("the step waits for data", "limited by {}"),
    Verdict.COMPUTE_BOUND: ("the loader keeps up; the step is the limit",) * 2,
    Verdict.COMMUNICATION_BOUND: ("the ranks wait for each other, not for data",) * 2,
    Verdict.BALANCED: ("loader and step keep pace", "loader and step keep pace; first to give way: {}"),
    Verdict.MISCONFIGURED: ("a setting or the data's layout is to blame", "a setting or the data's layout, seen in {}"),
    Verdict.UNDECIDED: (
        "the measurement cannot carry a verdict",
        "the measurement cannot carry a verdict; suspect: {}",
    ),
}
"""What each verdict says without and with a limiting stage."""


def headline(report: Report) -> tuple[str, str]:
    """Return the verdict's word, and what it means with the limiting stage named.

    A loader alone was measured to know its rate: where that gives no verdict, none was asked for.
    """
    diagnosis = report.diagnosis
    if report.kind == "loader" and diagnosis.verdict is Verdict.UNDECIDED:
        return "loader", "failed" if report.failures else "drained alone"
    without, with_stage = VERDICT_CLAUSES[diagnosis.verdict]
    stage = diagnosis.limiting_stage
    return diagnosis.verdict.value, without if stage is None else with_stage.format(stage.value)


def figures(report: Report) -> str:
    """Return the loop's figures in one sentence; empty where none was measured.

    A share that was predicted and not measured is called predicted.
    """
    diagnosis = report.diagnosis
    stall, parts = diagnosis.stall_share, []
    if stall.measured is not None:
        said = f"waits for data {share(stall.measured)} of the time"
        if stall.predicted is not None:
            said += f" (predicted {share(stall.predicted)})"
        parts.append(said)
    elif stall.predicted is not None:
        parts.append(f"predicted to wait for data {share(stall.predicted)} of the time (not measured)")
    if diagnosis.headroom is not None:
        parts.append(f"headroom {gain(diagnosis.headroom)}")
    return capital("; ".join(parts))


def settings_text(settings: LoaderSettings | None) -> str:
    """Return the loader's settings as torch spells them, defaults left out.

    >>> settings_text(LoaderSettings(num_workers=2, prefetch_factor=4, batch_size=32, pin_memory=True))
    'num_workers=2 prefetch_factor=4 batch_size=32 pin_memory=True'
    """
    if settings is None:
        return ""
    parts = [f"num_workers={settings.num_workers}"]
    if settings.prefetch_factor is not None:
        parts.append(f"prefetch_factor={settings.prefetch_factor}")
    if settings.batch_size is not None:
        parts.append(f"batch_size={settings.batch_size}")
    parts += [f"{name}=True" for name in ("persistent_workers", "pin_memory") if getattr(settings, name)]
    if not settings.in_order:
        parts.append("in_order=False")
    if settings.multiprocessing_context:
        parts.append(f"multiprocessing_context={settings.multiprocessing_context}")
    return " ".join(parts)


def hot_frame(frame: HotFrame | None, most: int = 0) -> str:
    """Return a place in the code as ``function file:line``; the path loses its head beyond ``most`` characters.

    >>> from ioprobe.run import Stage
    >>> spot = HotFrame(stage=Stage.DECODE, function="load", file="/a/long/way/to/train.py", line=88, samples=9)
    >>> hot_frame(spot), hot_frame(spot, most=20)
    ('load /a/long/way/to/train.py:88', 'load train.py:88')
    """
    if frame is None:
        return ""
    function, file = clean(frame.function), clean(frame.file)
    text = f"{function} {file}:{frame.line}"
    if most and len(text) > most:
        text = f"{function} {file.rsplit('/', 1)[-1]}:{frame.line}"
    return text


METRIC_WORDS = {
    "steps_per_s": "steps/s",
    "tokens_per_s": "tokens/s",
    "wait_p50_s": "wait p50",
    "wait_p95_s": "wait p95",
    "wait_p99_s": "wait p99",
    "epoch_edge_s": "wait at epoch edge",
    "mfu": "model FLOP utilization (MFU)",
    "hfu": "hardware FLOP utilization (HFU)",
    "au": "accelerator utilization (AU)",
    "mfu_in_loop_share": "MFU in the loop",
    "kernel_time_share": "driver's GPU utilization (a kernel ran)",
}


def metric(name: str, value: float) -> tuple[str, str]:
    """Return a figure's name in words and its value; the unit is read from the end of the name.

    >>> metric("time_to_first_batch_s", 1.25), metric("wait_p95_s", 0.09), metric("tokens_per_s", 51200)
    (('time to first batch', '1.25 s'), ('wait p95', '90.0 ms'), ('tokens/s', '51,200'))
    >>> metric("batch_bytes", 2048), metric("interference", 1.07), metric("au", 0.9)
    (('batch', '2.0 KiB'), ('interference', '×1.07'), ('accelerator utilization (AU)', '90.0%'))
    """
    words = METRIC_WORDS.get(name)
    if name == "interference":
        return name, f"×{value:.3g}"
    if name in ("mfu", "hfu", "au"):
        return words or name, format_share(value)
    if name == "flops_per_s":
        return "FLOP/s of the step", format_flops(value)
    for ending, form, unit in (
        ("_bytes_per_s", format_bytes, "/s"),
        ("_per_s", format_count, "/s"),
        ("_s", format_seconds, ""),
        ("_bytes", format_bytes, ""),
        ("_share", format_share, ""),
        ("_fraction", format_share, ""),
    ):
        if name.endswith(ending):
            plain = words or name.removesuffix(ending).replace("_", " ")
            return clean(plain), form(value) + ("" if words else unit)
    return clean(words or name.replace("_", " ")), format_count(value)
