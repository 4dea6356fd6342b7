"""Accelerator utilisation and throughput as DLIO and MLPerf Storage define them, beside our own."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ioprobe.run import MainBatches

MIB = 1 << 20


class DlioMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """One rank's figures by DLIO's formulas, with ours beside them."""

    au: float
    """Nominal compute of the steps after the first, over the time from the end of the first step on [fraction].

    Mean over epochs. Waiting for the first batch is left out, and so is what a step takes beyond its nominal time."""
    samples_per_s: float
    """All steps x batch over all of the epoch's time: release 2.0.0; mean over epochs."""
    samples_per_s_since_2024: float
    """(steps - 2) x batch over the time of ``au``: low by one step in so many, 11% at 10 steps; mean over epochs."""
    mib_per_s: float
    """``samples_per_s`` x nominal record: what should have been read, not what was (DLIO prints it as MB/s)."""
    busy_share: float
    """Ours: step time over wall time of the same window, first step and first wait included [fraction]."""
    sustained_samples_per_s: float
    """Ours: all samples over all time of the same window."""


def dlio_metrics(
    main: MainBatches, batch_size: int, record_bytes: float, computation_s: float | None = None
) -> DlioMetrics | None:
    """Return the figures of a coupled loop, or None where no epoch holds three steps.

    Args:
        main: Batches of the main process, with their steps.
        batch_size: Samples per step.
        record_bytes: Nominal size of a sample [bytes].
        computation_s: Nominal time of a step, which DLIO counts as its compute; the measured one by default [s].
    """
    if not main.step_s:
        return None
    blocks = [block for block in _epochs(main) if len(block) >= 3]
    if not blocks:
        return None
    utilisation, rates, later_rates, busy, wall, samples = [], [], [], 0.0, 0.0, 0
    for block in blocks:
        first, last = block[0], block[-1]
        whole = main.call_s[last] + main.wait_s[last] + main.step_s[last] - main.call_s[first]
        after_first = whole - (main.wait_s[first] + main.step_s[first])
        if after_first <= 0:
            return None
        compute = [main.step_s[i] if computation_s is None else computation_s for i in block[1:]]
        utilisation.append(sum(compute) / after_first)
        rates.append(len(block) * batch_size / whole)
        later_rates.append((len(block) - 2) * batch_size / after_first)
        busy += sum(main.step_s[i] for i in block)
        samples += sum(main.samples[i] for i in block)
        wall += whole
    rate = sum(rates) / len(rates)
    return DlioMetrics(
        au=sum(utilisation) / len(utilisation),
        samples_per_s=rate,
        samples_per_s_since_2024=sum(later_rates) / len(later_rates),
        mib_per_s=rate * record_bytes / MIB,
        busy_share=busy / wall,
        sustained_samples_per_s=samples / wall,
    )


def _epochs(main: MainBatches) -> list[Sequence[int]]:
    """Indices of the batches of each epoch, in order."""
    if not main.epoch:
        return [range(len(main.call_s))]
    found: dict[int, list[int]] = {}
    for index, epoch in enumerate(main.epoch):
        found.setdefault(epoch, []).append(index)
    return list(found.values())
