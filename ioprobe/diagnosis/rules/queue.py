"""IO1xx: the queue of prefetched batches, its order, and the sampler that feeds it."""

from __future__ import annotations

from math import ceil

from ioprobe.diagnosis.rules.base import Abstain, Finding, rule, unknown
from ioprobe.diagnosis.rules.facts import PipelineFacts
from ioprobe.units import format_count, format_seconds, format_share

# Any sampler takes some microseconds; against a step that takes as few, that says nothing.
NEGLIGIBLE_S = 5e-4
# A batch's time, 99th percentile over median, from which on it is slow by itself and not for want of a core.
TAIL = 2.5


@rule("IO104", "prefetch-too-shallow", needs="num_workers", key="prefetch_factor")
def prefetch_too_shallow(facts: PipelineFacts) -> list[Finding] | Abstain:
    """The queue cannot carry a pause.

    What it sees: prefetch_factor = 1, or a run in which the longest fetches outlast the batches that lie ready.
    Why it matters: Supply that is fast enough on average still stalls the step when a shard, a row group or a slow
        sample takes longer than the queue lasts.
    When it is wrong: Batches so large that memory forbids a second one; perfectly even supply.
    Example:
        prefetch_factor = 1
        prefetch_factor = 8    # fixed: covers the longest pause
    """
    if not facts.num_workers:
        return []
    if facts.prefetch_factor is None:
        return unknown(facts, "prefetch_factor")
    depth = facts.num_workers * facts.prefetch_factor
    stalls = facts.stall_share is None or facts.stall_share >= 0.05
    if facts.burst_batches is not None:
        pause = ceil(facts.burst_batches)
        if stalls and facts.burst_batches > 1.25 * depth and facts.burst_batches >= 2:
            per_worker = ceil(pause / facts.num_workers) + 1
            return [
                Finding(
                    text=f"the longest fetches last {format_count(facts.burst_batches)} steps, but at most {depth} "
                    f"batches "
                    f"lie ready ({facts.num_workers} workers x prefetch_factor {facts.prefetch_factor})",
                    fix=f"set prefetch_factor = {max(per_worker, facts.prefetch_factor + 1)}, or make the pauses "
                    f"shorter "
                    "(smaller shards or row groups)",
                )
            ]
        if not stalls or facts.burst_batches <= 1:
            return []
    if facts.prefetch_factor == 1:
        return [
            Finding(
                text=f"prefetch_factor = 1: each of {facts.num_workers} workers has one batch ahead, any pause stalls "
                f"the step",
                fix="set prefetch_factor = 2 or more, enough to cover the longest pause",
            )
        ]
    return []


@rule("IO106", "long-tail-in-order", needs="num_workers", key="in_order")
def long_tail_in_order(facts: PipelineFacts) -> list[Finding] | Abstain:
    """One slow sample holds back batches that are ready.

    What it sees: In a run, waiting for a batch while later ones lay ready and the workers that had made them had to
        stop; or from sample_ms and sample_p99_ms, a tail that outlasts the queue. Where workers fight for the cores,
        any batch may come late: then it abstains, unless the slow ones are slow by themselves.
    Why it matters: With in_order = True the loader hands batches out in order; behind one slow sample the other
        workers fill their queues and stop.
    When it is wrong: The order of batches must be reproducible, or must be the same in every rank.
    Example:
        in_order = true
        in_order = false    # fixed; or cap the outliers, or raise prefetch_factor
    """
    if facts.num_workers < 2 or facts.in_order is False:  # type: ignore[operator]
        return []
    if facts.in_order is None:
        return unknown(facts, "in_order")
    fix = "set in_order = false and raise prefetch_factor, or cap or pre-process the slow samples"
    if facts.head_of_line_share is not None:
        if facts.head_of_line_share < 0.1:
            return []
        if _late_for_a_core(facts):
            return Abstain(
                f"batches come late, but workers wait for a core {format_share(facts.runq_share or 0.0)} of their "
                "time, which does that by itself: free the cores, then measure again"
            )
        share = format_share(facts.head_of_line_share)
        text = f"order costs {share} of the loop: it waits for one batch, later ones lie ready, and workers stand still"
        return [Finding(text=text, fix=fix)]
    if facts.sample_s is None or facts.sample_p99_s is None or facts.batch_size is None:
        return unknown(facts, "sample_s", "sample_p99_s", "batch_size", how="or a run")
    depth = facts.depth
    if depth is None:
        return unknown(facts, "prefetch_factor")
    batch_s = facts.batch_size * facts.sample_s
    # While one worker is held up, the others keep the step busy until their prefetched batches are gone.
    cover_s = (depth - 1) * max(facts.step_s or 0.0, batch_s / facts.num_workers)  # type: ignore[operator]
    if facts.sample_p99_s < 10 * facts.sample_s or facts.sample_p99_s <= cover_s:
        return []
    return [
        Finding(
            text=f"one sample in a hundred takes {format_seconds(facts.sample_p99_s)} (median "
            f"{format_seconds(facts.sample_s)}), longer than the {depth} batches in flight last "
            f"({format_seconds(cover_s)}), and in_order is on",
            fix=fix,
        )
    ]


def _late_for_a_core(facts: PipelineFacts) -> bool:
    """Whether workers want more cores than there are, and none of their batches is slow but for that."""
    cores = facts.cores_per_rank
    if cores is None or facts.runq_share is None or facts.wanted_cores is None or facts.batch_spread is None:
        return False
    crowded = facts.runq_share >= 0.15 and (facts.num_workers or 0) * facts.wanted_cores > 1.2 * cores
    return crowded and facts.batch_spread < TAIL


@rule("IO108", "slow-sampler", key="sampler")
def slow_sampler(facts: PipelineFacts) -> list[Finding] | Abstain:
    """The sampler takes the step's time.

    What it sees: Time to draw one batch's indices in the main process (sampler_ms, or a run) against the step.
    Why it matters: The sampler runs in the training process between steps, and no worker can hide it; a Python
        loop or a draw over the whole dataset per batch grows with the dataset.
    When it is wrong: A step so asynchronous that the accelerator's queue hides it.
    Example:
        sampler_ms = 30      # np.random.choice over 10 M weights for every batch
        step_ms = 100
        sampler_ms = 0.1     # fixed: draw many batches' indices at once
    """
    if facts.sampler_s is None:
        return unknown(facts, "sampler_s", how="or a run")
    if facts.step_s is None:
        return unknown(facts, "step_s", how="or a run")
    share = facts.sampler_s / max(facts.step_s, 1e-9)
    if share < 0.05 or facts.sampler_s < NEGLIGIBLE_S:
        return []
    return [
        Finding(
            text=f"drawing the indices of a batch takes {format_seconds(facts.sampler_s)} in the main process, "
            f"{format_share(share)} of a step of {format_seconds(facts.step_s)}",
            fix="draw the indices of many batches at once (one vectorised call per epoch or per thousand batches)",
        )
    ]
