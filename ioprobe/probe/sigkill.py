"""What a SIGKILL came from, as far as the kernel tells: its own count of processes that it ended for memory."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from ioprobe.probe.cgroups import table

COUNTERS = Path("/proc/vmstat")
"""``oom_kill`` counts those of every control group, of the whole host even within a container."""


class Cause(NamedTuple):
    """A kind of failure, a clause for its message, and what to do."""

    kind: str
    clause: str
    hint: str


def out_of_memory_kills(counters: Path = COUNTERS) -> int | None:
    """Return how many processes the kernel ended for memory since it started; None where it does not count."""
    return table(counters).get("oom_kill")


_BEFORE = out_of_memory_kills()
"""When this process began, nearly: measuring starts later."""


def cause(before: int | None = _BEFORE, now: int | None = None) -> Cause:
    """Return what to say of a process that SIGKILL ended while this one ran.

    >>> cause(3, 3).kind, cause(3, 4).kind
    ('sigkill', 'killed')
    """
    now = out_of_memory_kills() if now is None else now
    if before is None or now is None:
        hint = "usually the out-of-memory killer: see 'dmesg', use fewer workers or smaller batches"
        return Cause("killed", "", hint)
    if now > before:
        hint = "use fewer workers or smaller batches, or give the job more memory; 'dmesg' names the process"
        return Cause("killed", f"the kernel ended {now - before} for want of memory meanwhile", hint)
    hint = "look for who ends processes here: a scheduler's limit, earlyoom, systemd-oomd, or a 'kill' by hand"
    return Cause("sigkill", "the kernel ended none for want of memory meanwhile", hint)
