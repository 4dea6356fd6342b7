"""Where ranks may wait for each other, timed in the job's own processes; see :mod:`ioprobe.instrument.meeting`."""

from __future__ import annotations

from ioprobe.instrument.meeting import Meetings, time_backward, time_collectives

__all__ = ["Meetings", "time_backward", "time_collectives"]
