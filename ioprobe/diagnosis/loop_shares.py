"""Input, communication and computation in the measured loop, for a step whose parts are known."""

from __future__ import annotations

from ioprobe.diagnosis.evidence import Evidence


def loop_shares(e: Evidence) -> dict[str, float] | None:
    """Return the shares ``compute communication transfer data_stall other_idle`` of the loop's wall time, summing to 1.

    What the loop does not lose to its input is divided as the step alone is. None without a loop, and for a step whose
    parts are not known.
    """
    run = e.run.step
    if e.loop is None or e.step is None or run is None or e.step.emulated or e.stall is None:
        return None
    parts = sum(run.parts_s.values())
    if parts <= 0 and e.step.communication is None:
        return None

    def share(*names: str) -> float:
        return sum(run.parts_s.get(name, 0.0) for name in names) / parts if parts > 0 else 0.0

    stall = min(1.0, e.stall)
    communication = e.step.communication.share.value if e.step.communication else 0.0
    transfer, idle = share("transfer"), share("idle", "checkpoint")
    scale = (1 - stall) / max(1.0, communication + transfer + idle)
    found = {"communication": communication * scale, "transfer": transfer * scale}
    compute = max(0.0, 1 - stall - sum(found.values()) - idle * scale)
    return {"compute": compute, **found, "data_stall": stall, "other_idle": idle * scale}
