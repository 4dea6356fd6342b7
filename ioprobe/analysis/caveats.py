"""Reasons to trust a finished run's figures less, and what would settle them."""

from __future__ import annotations

from ioprobe.diagnosis.evidence import gather
from ioprobe.run import Caveat, Run
from ioprobe.units import format_bytes


def caveats(run: Run) -> list[Caveat]:
    """Return reasons to trust this run's figures less."""
    found = []
    evidence = gather(run)
    foreign = evidence.foreign_cores
    if foreign > 0.15 * evidence.cores:
        found.append(
            Caveat(
                "other-load",
                f"other processes used {foreign:.1f} cores while this was measured, and this job may use "
                f"{evidence.cores:g}",
                "measure again on a quiet host; 'ioprobe doctor' shows what runs",
            )
        )
    loop = run.loop()
    if loop is not None and loop.stopped_because == "seconds" and evidence.loop is not None:
        half = (evidence.loop.stall_share.high - evidence.loop.stall_share.low) / 2
        if half > 0.05:
            found.append(
                Caveat(
                    "wide-interval",
                    f"the stall share is known only to ±{100 * half:.0f} points after {evidence.loop.n} batches",
                    "give it more time with --seconds",
                )
            )
    _cache(run, found)
    return found


def _cache(run: Run, found: list[Caveat]) -> None:
    loop, dataset = run.loop() or run.loader_alone(), run.dataset
    if loop is None or loop.workers is None or loop.device_read_bytes is None:
        return
    read = sum(b for b in loop.workers.read_bytes if b > 0)
    if read < 50e6 or loop.device_read_bytes > 0.2 * read:
        return
    fits = ""
    if dataset is not None and dataset.total_bytes and run.host.memory_available_bytes:
        free = run.host.memory_available_bytes
        size = f"; the dataset ({format_bytes(dataset.total_bytes)})"
        fits = f"{size} fits into the free memory ({format_bytes(free)}): from epoch 2 on it runs at memory speed"
        if dataset.total_bytes > free:
            fits = f"{size} does not fit into the free memory ({format_bytes(free)}): training will read from storage"
    found.append(
        Caveat(
            "cache-warm",
            f"of {read / 1e6:.0f} MB read only {loop.device_read_bytes / 1e6:.0f} MB came from a device, the rest from "
            f"the page cache{fits}",
            "'ioprobe storage URL' measures cold and warm apart",
        )
    )
