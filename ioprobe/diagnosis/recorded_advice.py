"""What to change after a recording: the remedy of the limiting stage, with the most that it can bring. Pure."""

from __future__ import annotations

from ioprobe.diagnosis.recorded_stacks import few_deliver
from ioprobe.diagnosis.remedy_texts import FOR_FINDING, FOR_LIMIT, LOOK_AT_THE_STEP, RemedyText
from ioprobe.diagnosis.types import Advice, Diagnosis, Verdict
from ioprobe.run import Limit, Run
from ioprobe.units import format_seconds, format_share

_PIN = RemedyText(
    "IO616",
    "set pin_memory=True and copy with non_blocking=True, so that copies to the device overlap with compute",
    "batches are so small that pinning them costs more than their copy",
)
_AS_FINDING = {
    Limit.IPC: "transport",
    Limit.SAMPLER: "sampler",
    Limit.LOCK_CONTENTION: "lock",
    Limit.WORKER_STARTUP: "respawn",
    Limit.OVERSUBSCRIPTION: "too-many-workers",
}


def advise_recording(run: Run, diagnosis: Diagnosis) -> list[Advice]:
    """Return advice, the most useful first; a recording cannot predict a gain, only bound it."""
    bound = _bound(diagnosis)
    found: list[Advice] = []
    if diagnosis.verdict in (Verdict.DATA_BOUND, Verdict.MISCONFIGURED):
        found += _for_limit(diagnosis, bound)
        if clause := few_deliver(run):
            text = FOR_FINDING["idle-workers"]
            found.insert(0, Advice(code=text.code, action=text.action, because=clause, wrong_when=text.wrong_when))
        if not any(r.settings and r.settings.num_workers for r in run.loaders) and _in_main(run):
            text = FOR_FINDING["no-workers"]
            because = "no worker was seen: the main process makes each batch while the step waits"
            found.insert(0, Advice(code=text.code, action=text.action, because=because, wrong_when=text.wrong_when))
    elif diagnosis.verdict is Verdict.COMPUTE_BOUND:
        found.append(
            Advice(
                code="IO600",
                action=f"change nothing in the loader; {LOOK_AT_THE_STEP}",
                because=bound,
                wrong_when="the step gets faster (another accelerator, mixed precision): then record again",
            )
        )
    elif diagnosis.verdict is Verdict.COMMUNICATION_BOUND:
        text = FOR_LIMIT[Limit.COMMUNICATION]
        found.append(Advice(code=text.code, action=text.action, because=bound, wrong_when=text.wrong_when))
    pageable = sum(p.hidden_s.get("pageable", 0.0) for p in run.partitions)
    if pageable > 0 and diagnosis.limiting_stage is not Limit.HOST_TO_DEVICE:
        exposed = sum(p.transfer_s for p in run.partitions)
        because = f"copies from pageable memory take {format_seconds(pageable)}; "
        because += f"{format_seconds(exposed)} of all copies is hidden by nothing"
        found.append(Advice(code=_PIN.code, action=_PIN.action, because=because, wrong_when=_PIN.wrong_when))
    return found


def _for_limit(diagnosis: Diagnosis, bound: str) -> list[Advice]:
    limit = diagnosis.limiting_stage
    if limit is None:
        return []
    if limit is Limit.HOST_TO_DEVICE:
        text: RemedyText | None = _PIN
    elif limit in _AS_FINDING:
        text = FOR_FINDING[_AS_FINDING[limit]]
    else:
        text = FOR_LIMIT.get(limit)
    if text is None:
        return []
    because = f"{limit.value} limits the loader; {bound}"
    return [Advice(code=text.code, action=text.action, because=because, wrong_when=text.wrong_when)]


def _bound(diagnosis: Diagnosis) -> str:
    if diagnosis.headroom is None:
        return "how much it can bring, this recording does not tell"
    return f"a loader that costs nothing would bring {format_share(max(0.0, diagnosis.headroom.value))} at the most"


def _in_main(run: Run) -> bool:
    """Return whether the recording shows data work in the main process."""
    if any(c.code == "no-workers" for c in run.caveats):
        return True
    return any(s.role == "main" for loader in run.loaders for s in loader.stacks) and not any(
        s.role == "worker" for loader in run.loaders for s in loader.stacks
    )
