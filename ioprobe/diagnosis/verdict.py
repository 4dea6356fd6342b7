"""From evidence to a verdict, its limiting stage and the sentence that carries it.

Boundaries, in shares of the loop's wall time lost to the input side: below 10%
it is not input-bound, above 20% highly so; between the two a loader that is
within a third of the step is balanced. TensorFlow's profiler calls 5% and 20%
moderately and highly input-bound.
"""

from __future__ import annotations

from ioprobe.diagnosis.costs import place_of
from ioprobe.diagnosis.evidence import Evidence
from ioprobe.diagnosis.fetch_limits import fetch_limit
from ioprobe.diagnosis.finding import LAYOUT_FINDINGS, Finding
from ioprobe.diagnosis.findings import find_all
from ioprobe.diagnosis.types import Verdict
from ioprobe.run import Failure, Limit, Stage
from ioprobe.stats import Estimate
from ioprobe.units import format_count, format_rate, format_seconds, format_share

LOW_STALL = 0.10
HIGH_STALL = 0.20
COMMUNICATION = 0.40
"""Share of the step from which exposed communication is what a faster step needs first [fraction]."""
NEAR = 1.4
"""Loader over step below which a loader that keeps up has no headroom to speak of."""
_FEWEST_BATCHES = 12
_LEAST_BATCHES = 5

Decision = tuple[Verdict, Limit | None, str]


def decide(evidence: Evidence) -> tuple[Verdict, Limit | None, str, list[Finding]]:
    """Return verdict, limiting stage, evidence sentence and all findings, strongest first."""
    findings = find_all(evidence)
    verdict, limit, text = _decide(evidence, findings)
    return verdict, limit, text, findings


def _decide(e: Evidence, findings: list[Finding]) -> Decision:
    broken = _from_failure(e)
    if broken is not None:
        return broken
    layout = next((f for f in findings if f.strength >= LAYOUT_FINDINGS), None)
    if layout is not None:
        return Verdict.MISCONFIGURED, layout.limit, layout.text
    if e.loop is None or e.step is None:
        return _without_loop(e, findings)
    if e.loop.n < _LEAST_BATCHES:
        return (
            Verdict.UNDECIDED,
            None,
            f"only {e.loop.n} steady batches were seen, of {format_seconds(e.loop.cycle_s)} each: too few for a "
            f"verdict; give it about {max(60, round(12 * 4 * e.loop.cycle_s))} s (--seconds)",
        )
    if e.loop.samples_per_s.value > 1.2 * e.step.samples_per_s.value and not e.step.pause_share:
        apart = f"the step alone took {format_seconds(e.step.seconds)}, within the loop {format_seconds(e.loop.step_s)}"
        if _outruns_both(e):
            return Verdict.COMPUTE_BOUND, Limit.STEP, f"{_rates(e)}; the step changes meanwhile: {apart}"
        return (
            Verdict.UNDECIDED,
            None,
            f"loop and step contradict each other: {apart}; other load or a changing step spoiled one of them, "
            "measure again",
        )
    if e.loop.n < _FEWEST_BATCHES and _could_be_either(e):
        return (
            Verdict.UNDECIDED,
            None,
            f"only {e.loop.n} steady batches were seen and the stall share lies between "
            f"{format_share(e.loop.stall_share.low)} and {format_share(e.loop.stall_share.high)}",
        )
    pause = _pause_not_met(e)
    if pause:
        return Verdict.UNDECIDED, None, pause
    return _from_loop(e, findings)


def _pause_not_met(e: Evidence) -> str:
    """Say so where the loader alone paused for longer than its queue covers, and the loop was too short to; else ''."""
    alone, loop = e.alone, e.loop
    if alone is None or loop is None or e.settings is None:
        return ""
    covered_s = 2 * max(1, e.settings.depth) * loop.cycle_s
    rare = alone.samples_per_s.relative_halfwidth > 0.5 and alone.wait_in_bursts > 0.5
    if not rare or alone.wait_p99_s < covered_s or loop.wait_p99_s > 0.5 * alone.wait_p99_s:
        return ""
    return (
        f"the loader alone paused for {format_seconds(alone.wait_p99_s)} within {alone.n} batches, and the {loop.n} "
        f"batches of the loop met no such pause: what it costs is not known; give it more time (--seconds)"
    )


def _outruns_both(e: Evidence) -> bool:
    """Whether the loader is far faster than loop and step alike, so that which of the two is right does not matter."""
    if e.alone is None or e.loop is None or (e.stall or 0.0) >= LOW_STALL:
        return False
    return e.alone.samples_per_s.low > 2 * max(e.loop.samples_per_s.value, e.step.samples_per_s.value if e.step else 0)


def _could_be_either(e: Evidence) -> bool:
    assert e.loop is not None
    share = e.loop.stall_share
    low, high = share.low + e.loop.release_share, share.high + e.loop.release_share
    return low < LOW_STALL and high > HIGH_STALL


def _from_loop(e: Evidence, findings: list[Finding]) -> Decision:
    assert e.loop is not None
    assert e.step is not None
    stall, ratio = e.stall or 0.0, e.ratio
    contention = next((f for f in findings if f.code == "step-contention"), None)
    near = ratio is None or ratio < NEAR + 0.4
    # Losing a quarter to each other outweighs which of the two is slower alone.
    if contention is not None and stall < HIGH_STALL and (near or contention.strength >= 0.75):
        return Verdict.BALANCED, contention.limit, contention.text
    if stall < LOW_STALL:
        if ratio is not None and ratio < NEAR and not _hidden_deficit(e):
            return Verdict.BALANCED, None, _balanced(e)
        if ratio is not None and ratio < 0.9:
            return _bound_by_data(e, findings)
        return _bound_by_step(e)
    if _could_be_either(e) and e.loop.n < 40:
        return (
            Verdict.UNDECIDED,
            None,
            f"the stall share lies between {format_share(e.loop.stall_share.low)} and "
            f"{format_share(e.loop.stall_share.high)} over {e.loop.n} batches",
        )
    misconfigured = next((f for f in findings if f.misconfigured), None)
    if misconfigured is not None and (stall >= LOW_STALL or (ratio or 0) < 1):
        stronger = next((f for f in findings if not f.misconfigured and f.strength > misconfigured.strength), None)
        if stronger is None or misconfigured.code in ("idle-workers", "no-workers", "respawn"):
            return Verdict.MISCONFIGURED, misconfigured.limit, misconfigured.text
    if stall < HIGH_STALL and (ratio is None or 0.75 <= ratio <= NEAR):
        return Verdict.BALANCED, None, _balanced(e)
    if ratio is not None and ratio > 1.5 and e.loop.release_share < LOW_STALL:
        # Handing over a batch has a fixed price, which short steps feel; past a fifth of the time it is no price.
        if stall < HIGH_STALL and ratio > 2:
            return _bound_by_step(e)
        serial = next((f for f in findings if _takes_turns(e, f)), None)
        if serial is None:
            return _unexplained(e)
        verdict = Verdict.DATA_BOUND if stall >= HIGH_STALL else Verdict.BALANCED
        return verdict, serial.limit, f"{serial.text}; {_rates(e)}"
    return _bound_by_data(e, findings)


_SERIAL = {"same-thread", "sampler", "inline", "transport"}
"""Findings about work in the loop's own thread: it adds to the step however much faster than that the loader is."""


def _takes_turns(e: Evidence, finding: Finding) -> bool:
    """Whether a finding is of work that takes turns with the step, and as much of it as the loop was seen to wait."""
    if finding.code not in _SERIAL or e.alone is None or e.step is None:
        return False
    seconds = finding.strength * e.alone.cycle_s
    return seconds / (seconds + e.step.seconds) >= 0.6 * (e.stall or 0.0)


def _unexplained(e: Evidence) -> Decision:
    """The loader alone is much faster than the step, no cause was found, and yet the loop waited."""
    load = f"; other processes used {e.foreign_cores:.1f} of {e.cores:g} cores" if e.foreign_cores > 0.2 else ""
    return Verdict.UNDECIDED, None, f"the loop's waiting is not explained: {_rates(e)}{load}; measure again"


def _hidden_deficit(e: Evidence) -> bool:
    """Whether the loader alone is clearly slower than the step although the loop has not waited (yet)."""
    return e.ratio is not None and e.ratio < 0.72


def _bound_by_data(e: Evidence, findings: list[Finding]) -> Decision:
    resource = next((f for f in findings if not f.misconfigured and f.code != "step-contention"), None)
    if resource is not None:
        return Verdict.DATA_BOUND, resource.limit, f"{resource.text}; {_rates(e)}"
    limit = fetch_limit(e)
    return Verdict.DATA_BOUND, limit, f"{worker_sentence(e, limit)}; {_rates(e)}"


def _bound_by_step(e: Evidence) -> Decision:
    assert e.step is not None
    seen = e.step.communication
    if seen is not None and seen.share.value >= COMMUNICATION and seen.share.low >= COMMUNICATION / 2:
        return (
            Verdict.COMMUNICATION_BOUND,
            Limit.COMMUNICATION,
            f"{seen.amount} of the step's {format_seconds(e.step.seconds)} is {seen.text}; {_rates(e)}",
        )
    copied = e.step.transfer_share
    if copied is not None and copied >= 0.4:
        return (
            Verdict.DATA_BOUND,
            Limit.HOST_TO_DEVICE,
            f"{format_share(copied)} of the step's {format_seconds(e.step.seconds)} copies the batch to the device, "
            f"unhidden; {_rates(e)}",
        )
    text = _rates(e)
    if e.step.pause_share > 0.1:
        text += (
            f"; {format_share(e.step.pause_share)} of the step's time are regular pauses inside the step (checkpoint, "
            "logging), not data stalls"
        )
    return Verdict.COMPUTE_BOUND, Limit.STEP, text


def _balanced(e: Evidence) -> str:
    return f"loader and step are within a third of each other: {_rates(e)}"


def _rates(e: Evidence) -> str:
    parts = []
    if e.alone is not None:
        parts.append(f"the loader alone gives {format_rate(e.alone.samples_per_s.value)}")
    if e.step is not None:
        parts.append(f"the step takes {format_rate(e.step.samples_per_s.value)}")
    if e.loop is not None:
        parts.append(f"the loop waits {format_share(e.loop.stall_share.value)} of the time")
    return ", ".join(parts)


def worker_sentence(e: Evidence, limit: Limit) -> str:
    """Return what the limiting stage costs, in the units that a person can check."""
    costs = e.costs
    seen = e.alone or e.loop
    if costs is None or seen is None:
        return f"{limit.value} limits the loader"
    per = max(1.0, seen.samples_per_batch)
    one = e.workers <= 1
    workers = f"{e.workers} worker{'' if one else 's'}" if e.workers else "the main process"
    if limit in (Limit.STORAGE_LATENCY, Limit.STORAGE_BANDWIDTH):
        text = (
            f"{'a worker' if e.workers else 'the main process'} is blocked {format_seconds(costs.blocked_s / per)} a "
            f"sample on reads ({format_share(costs.blocked_share)} of its time)"
        )
        if e.scaling is not None:
            more = "brings next to nothing" if e.scaling.saturated else "scales"
            text += (
                f"; going from {min(e.scaling.num_workers, e.workers)} to {max(e.scaling.num_workers, e.workers)} "
                f"workers {more} ({format_count(e.scaling.ratio)}x)"
            )
        return f"{text}; {workers} wait{'s' if one else ''} at a time" if e.workers else text
    inside = limit is Limit.DECODE and costs.reads_on_cpu
    decode = Stage.READ if inside else Stage.DECODE
    stage = {Limit.DECODE: decode, Limit.TRANSFORM: Stage.TRANSFORM, Limit.COLLATE: Stage.COLLATE}.get(limit)
    what = "inflating and parsing inside the reader" if inside else limit.value
    seconds = costs.collate_s if stage is Stage.COLLATE else costs.fetch_s.get(stage or Stage.DECODE, 0.0)
    frame = costs.hottest.get(stage) if stage else None
    place = place_of(frame)
    if costs.on_processes and stage in (Stage.DECODE, Stage.TRANSFORM):
        computed, have = format_seconds(costs.process_cpu_s / per), "shares" if one else "share"
        return (
            f"{what} takes {format_seconds(seconds / per)} a sample{place}, with {computed} of CPU in processes that "
            f"the workers wait for, and {workers} {have} {e.cores:g} cores with them"
        )
    whose = "the worker's time" if e.workers else "the time to make it"
    return (
        f"{what} takes {format_seconds(seconds / per)} a sample{place}, {format_share(1 - costs.blocked_share)} of "
        f"{whose} is CPU, and {workers} {'has' if one else 'share'} {e.cores:g} cores"
    )


def _without_loop(e: Evidence, findings: list[Finding]) -> Decision:
    if e.failures:
        first = e.failures[0]
        return Verdict.UNDECIDED, None, f"{first.message}{' at ' + first.where if first.where else ''}"
    if e.alone is None and e.step is None:
        return Verdict.UNDECIDED, None, "nothing was measured"
    if e.alone is None:
        assert e.step is not None
        return Verdict.UNDECIDED, None, f"the loader was not measured; the step takes {_rate(e.step.samples_per_s)}"
    if e.step is None:
        per_batch = e.alone.cycle_s
        return (
            Verdict.UNDECIDED,
            None,
            f"no step was given: the loader alone gives {_rate(e.alone.samples_per_s)} and keeps up with steps of "
            f"{format_seconds(per_batch)} a batch or more",
        )
    ratio = e.ratio or 0.0
    if ratio >= 1.5:
        return _bound_by_step(e)
    if ratio <= 0.7:
        return _bound_by_data(e, findings)
    return Verdict.BALANCED, None, _balanced(e)


def _rate(estimate: Estimate) -> str:
    return format_rate(estimate.value)


_BROKEN: dict[str, tuple[Limit | None, str]] = {
    "descriptors": (Limit.IPC, "file descriptors ran out: each tensor of a batch that is kept holds one"),
    "shared-memory": (Limit.IPC, "the batches in flight do not fit into shared memory (/dev/shm)"),
    "killed": (None, "a process of the loader was killed, most likely for want of memory"),
    "killed-again": (None, "a process of the loader was killed in both of two runs"),
}


def _from_failure(e: Evidence) -> Decision | None:
    for failure in e.failures:
        known = _BROKEN.get(failure.kind)
        if known is not None:
            return Verdict.MISCONFIGURED, known[0], f"{known[1]}: {failure.message}"
    stuck = next((f for f in e.failures if f.kind == "fork-deadlock"), None)
    if stuck is not None:
        return Verdict.MISCONFIGURED, Limit.LOCK_CONTENTION, _sentence(stuck)
    loop = e.run.loop()
    fatal = [f for f in e.failures if f.phase in ("loop", "loader", "step", "factory") and f.kind != "interrupted"]
    if fatal and (e.loop is None or (loop is not None and loop.failure is not None)):
        return Verdict.UNDECIDED, None, _sentence(fatal[0])
    return None


def _sentence(failure: Failure) -> str:
    return failure.message + (f" ({failure.where})" if failure.where else "")
