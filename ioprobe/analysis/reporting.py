"""From a run to the report that every renderer gets."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np

from ioprobe.diagnosis.advice import limits_of
from ioprobe.diagnosis.diagnose import Finished, diagnose
from ioprobe.diagnosis.evidence import saved_without_sync
from ioprobe.diagnosis.loop_shares import loop_shares
from ioprobe.diagnosis.modelled import as_counted, refuted
from ioprobe.diagnosis.ranks import (
    late_sentence,
    leading,
    rank_summaries,
    storage_sentence,
    total_sentence,
    totals,
)
from ioprobe.diagnosis.recordings import report_recording, shares_of
from ioprobe.diagnosis.steady import cycles, steady, waits
from ioprobe.diagnosis.types import Advice, Report, Timeline, WhatIfPoint
from ioprobe.diagnosis.utilization import step_utilization
from ioprobe.model.predict import predict
from ioprobe.model.search import corrected, most_workers
from ioprobe.run import LoaderRun, LoaderSettings, Run
from ioprobe.stats import Estimate, quotient

_BINS = 2000
_MOST_POINTS = 72
_SHOWN = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
"""Numbers of workers on the what-if curve."""


def report_from_run(run: Run, *, run_path: str | None = None, page_path: str | None = None) -> Report:
    """Return the report of a run: everything but the measurements is computed here, anew."""
    if run.ranks:
        return _of_ranks(run, run_path, page_path)
    if run.kind in ("profile", "attach"):
        return report_recording(run, run_path, page_path)
    done = diagnose(run)
    loop = run.loop() or run.loader_alone()
    use = step_utilization(run.step, run.host) if run.step else None
    return Report(
        kind=run.kind,
        created_at=run.created_at,
        version=run.version,
        complete=run.complete,
        target=run.workload.target,
        command=run.workload.command,
        run=run_path,
        page=page_path,
        host=run.host,
        unit=run.workload.unit,
        settings=loop.settings if loop else None,
        diagnosis=done.diagnosis,
        advice=_standing([_verified(a, run, done) for a in done.advice]),
        what_if=what_if(run, done),
        timeline=timeline(loop),
        partition=shares_of(run.partitions) if run.partitions else loop_shares(done.evidence),
        partitions=run.partitions,
        caveats=[*run.caveats, *(done.profile.caveats if done.profile else ()), *(use.caveats if use else ())],
        failures=[*run.failures, *(m.failure for m in run.loaders if m.failure)]
        + ([run.step.failure] if run.step and run.step.failure else []),
        metrics=metrics(run, done),
    )


def _of_ranks(run: Run, run_path: str | None, page_path: str | None) -> Report:
    """Return the report of a job with several ranks: that of the rank which sets the pace, with all ranks beside it."""
    lead = leading(run)
    report = report_from_run(msgspec.structs.replace(lead, ranks=[]), run_path=run_path, page_path=page_path)
    late = told = late_sentence(run)
    if not late and lead is not run:
        late = f"rank {lead.rank} waits most for data; the figures are those of its loop"
    reasons = [text for text in (late, total_sentence(run), storage_sentence(run)) if text]
    partitions = [p for r in (run, *run.ranks) for p in r.partitions]
    return msgspec.structs.replace(
        report,
        complete=run.complete,
        diagnosis=msgspec.structs.replace(report.diagnosis, reasons=[*reasons, *report.diagnosis.reasons]),
        partition=shares_of(partitions) if partitions else report.partition,
        partitions=partitions,
        ranks=rank_summaries(run, told),
        metrics={**totals(run), **report.metrics},
        caveats=[*run.caveats, *(c for c in report.caveats if c not in run.caveats)],
        failures=[*run.failures, *(f for f in report.failures if f not in run.failures)],
    )


def _standing(advice: list[Advice]) -> list[Advice]:
    """Withdraw savings that a real run showed to cost throughput, and put refuted gains last."""
    kept = [a for a in advice if not (a.code == "IO602" and a.verified is not None and a.verified.value < -0.03)]
    return sorted(kept, key=lambda a: a.verified is not None and (a.verified.high < 0 or a.verified.value < -0.03))


def _verified(advice: Advice, run: Run, done: Finished) -> Advice:
    """Add what a real run at the advised settings gave."""
    base = done.evidence.loop
    if not advice.settings or base is None:
        return advice
    for measured in run.loaders:
        if measured.purpose != "verify" or not measured.coupled or not _matches(measured.settings, advice.settings):
            continue
        seen = steady(measured)
        if seen is None:
            continue
        over = quotient(seen.samples_per_s, base.samples_per_s)
        gain = Estimate(over.value - 1, over.low - 1, over.high - 1, seen.n)
        return msgspec.structs.replace(advice, verified=gain)
    return advice


def _matches(settings: LoaderSettings | None, wanted: dict[str, Any]) -> bool:
    return settings is not None and all(getattr(settings, key, None) == value for key, value in wanted.items())


def what_if(run: Run, done: Finished) -> list[WhatIfPoint]:
    """Return predicted and measured points: workers by prefetch by step time."""
    points = _measured(run)
    profile, best = done.profile, done.best
    if profile is None or best is None or not profile.adaptable:
        return points
    now = profile.current
    step_s = now.step_s if now.step_s is not None else (done.evidence.step.seconds if done.evidence.step else 0.0)
    most = max(now.num_workers, best.recommended.num_workers, most_workers(profile, now, limits_of(run)))
    seen = refuted(profile, run, done.evidence)
    shown = [count for count in _SHOWN if count <= most]
    workers = sorted({*shown, now.num_workers, best.recommended.num_workers})
    pairs = [(now.prefetch_factor, 1.0), (now.prefetch_factor, 0.5), (now.prefetch_factor, 2.0)]
    pairs += [(f, 1.0) for f in (1, 2, 4) if f != now.prefetch_factor]
    for factor, scale in pairs:
        for count in workers:
            if len(points) >= _MOST_POINTS:
                return points
            if count == 0 and factor != now.prefetch_factor:
                continue
            setting = now.at(num_workers=count, prefetch_factor=factor)
            if scale != 1.0:
                setting = setting.at(step_s=step_s * scale)
            found = corrected(as_counted(predict(profile, setting), done.evidence), seen)
            points.append(
                WhatIfPoint(
                    settings={
                        "num_workers": count,
                        "prefetch_factor": factor,
                        "step_ms": round(1e3 * step_s * scale, 2),
                    },
                    samples_per_s=found.samples_per_s,
                    stall_share=found.stall_share,
                )
            )
    return points


def _measured(run: Run) -> list[WhatIfPoint]:
    points = []
    step = run.step
    step_ms = round(1e3 * sum(step.durations_s) / len(step.durations_s), 2) if step and step.durations_s else None
    for measured in run.loaders:
        seen = steady(measured)
        other = measured.purpose == "other"
        if seen is None or measured.settings is None or not measured.coupled or step_ms is None or other:
            continue
        points.append(
            WhatIfPoint(
                settings={
                    "num_workers": measured.settings.num_workers,
                    "prefetch_factor": measured.settings.prefetch_factor or 2,
                    "step_ms": step_ms,
                },
                samples_per_s=seen.samples_per_s,
                stall_share=seen.stall_share,
                measured=True,
            )
        )
    return points


def timeline(run: LoaderRun | None) -> Timeline | None:
    """Return the batches over time, summed into at most 2,000 bins."""
    if run is None or not run.main.call_s:
        return None
    n = len(run.main.call_s)
    seen = steady(run)
    first = seen.first if seen else run.warmup_batches
    bins = np.array_split(np.arange(n), min(n, _BINS))
    call, wait = np.asarray(run.main.call_s), waits(run)
    busy = np.maximum(0.0, cycles(run) - wait)
    return Timeline(
        start_s=[float(call[b[0]]) for b in bins],
        wait_s=[float(wait[b].sum()) for b in bins],
        step_s=[float(busy[b].sum()) for b in bins],
        warmup=[int(b[-1] < first) for b in bins],
    )


def _dlio(run: Run) -> dict[str, float | None]:
    """Return DLIO's own figures where the run is of a DLIO workload."""
    from ioprobe.model.au import dlio_metrics

    asked, loop = run.workload.dlio, run.loop()
    if not asked or loop is None:
        return {}
    theirs = dlio_metrics(loop.main, int(asked["batch_size"]), asked["record_bytes"], asked.get("computation_s"))
    if theirs is None:
        return {}
    return {"dlio_au": theirs.au, "dlio_samples_per_s": theirs.samples_per_s, "dlio_mib_per_s": theirs.mib_per_s}


def _step_metrics(run: Run, done: Finished) -> dict[str, float | None]:
    """Return what the step does with the accelerator: work, energy, communication."""
    e, step = done.evidence, run.step
    if step is None or e.step is None:
        return {}
    found: dict[str, float | None] = {"kernel_time_share": step.kernel_time_share}
    if step.joules_per_step is not None:
        found["joules_per_sample"] = step.joules_per_step / step.samples_per_step
    if step.updates_per_step is not None and step.updates_per_step < 1:
        found["updates_per_step"] = step.updates_per_step
    seen, saved = e.step.communication, saved_without_sync(step)
    found["communication_share"] = None if seen is None else seen.share.value
    found["synchronisation_s"] = None if saved is None else max(0.0, saved.value)
    use = step_utilization(step, run.host)
    if use is not None:
        found |= {"flops_per_s": use.flops_per_s, "mfu": use.mfu, "hfu": use.hfu}
        if e.loop is not None and use.mfu is not None:
            found["mfu_in_loop_share"] = use.mfu * e.step.seconds / e.loop.cycle_s
    return found


def metrics(run: Run, done: Finished) -> dict[str, float]:
    """Return further figures by name, the unit at its end."""
    e = done.evidence
    loop_run = run.loop() or run.loader_alone()
    found: dict[str, float | None] = {}
    if loop_run is not None:
        found["time_to_first_batch_s"] = loop_run.time_to_first_batch_s
        found["batch_bytes"] = loop_run.batch_bytes
        edges = loop_run.epoch_edges_s
        found["epoch_edge_s"] = sum(edges) / len(edges) if edges else None
        pss = loop_run.worker_pss_bytes
        found["worker_memory_bytes"] = max(pss) if pss else None
    seen = e.loop or e.alone
    if seen is not None:
        found |= {"wait_p50_s": seen.wait_p50_s, "wait_p95_s": seen.wait_p95_s, "wait_p99_s": seen.wait_p99_s}
        found["steps_per_s"] = 1 / seen.cycle_s if e.loop else None
        found["release_share"] = seen.release_share
        found["steady_batches"] = seen.n
        if run.workload.tokens_per_sample:
            found["tokens_per_s"] = seen.samples_per_s.value * run.workload.tokens_per_sample
    if e.loop is not None and e.loop.step_s is not None:
        found["au"] = max(0.0, 1 - e.loop.stall_share.value - e.loop.release_share)
    found |= _dlio(run)
    found["interference"] = e.interference
    if e.alone is not None:
        found["loader_samples_per_s"] = e.alone.samples_per_s.value
    if e.costs is not None:
        found["worker_idle_share"] = e.costs.idle_share
        found["worker_runq_share"] = e.costs.runq_share
    found |= _step_metrics(run, done)
    return {key: float(value) for key, value in found.items() if value is not None and math.isfinite(value)}
