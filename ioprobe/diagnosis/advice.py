"""What to change, with the gain that the model predicts for it."""

from __future__ import annotations

from typing import Any

from ioprobe.diagnosis.costs import worker_costs
from ioprobe.diagnosis.evidence import Evidence
from ioprobe.diagnosis.finding import Finding
from ioprobe.diagnosis.remedy_texts import FOR_FAILURE, FOR_FINDING, FOR_LIMIT, LOOK_AT_THE_STEP, ONE_AT_A_TIME
from ioprobe.diagnosis.types import Advice, Verdict
from ioprobe.model.predict import predict
from ioprobe.model.profile import Prediction, Profile, Setting
from ioprobe.model.search import Limits, SearchResult, search
from ioprobe.run import Limit, LoaderRun, Run
from ioprobe.stats import Estimate
from ioprobe.units import format_share

_NOT_THE_STAGE = {
    "lock",
    "transport",
    "sampler",
    "pin-thread",
    "inline",
    "idle-workers",
    "epoch-edges",
    "own-processes",
    "own-processes-wait",
}
"""Findings after which advice about the limiting stage itself would lead away from the cause."""
_FOR_SPEED = {"IO104", "IO106"}
"""Advice with settings that has no other merit than the gain; fewer workers or longer lives spare memory and starts."""
_DEEPER = (4, 6, 8, 12, 16, 32)
_WORTH = 0.02


def limits_of(run: Run) -> Limits:
    """Return what the host and the data allow."""
    host, facts = run.host, run.facts
    ram = host.memory_available_bytes
    known = facts.num_shards if facts and facts.kind == "iterable" else None
    seen = shards_seen(run)
    return Limits(
        cores=host.usable_cores * run.local_ranks,
        ram_bytes=None if ram is None else 0.7 * ram,
        shm_bytes=host.shm_available_bytes,
        shards=known if seen is None else min(seen, known or seen),
        ranks_per_host=run.local_ranks,
    )


def shards_seen(run: Run) -> int | None:
    """Return how many workers a stream has data for, where a measurement had more than that; None where none had.

    Tasks go round the workers in turn, so once batches for several rounds have come, a worker without one has no data.
    """
    found = []
    for measured in run.loaders:
        costs = worker_costs(measured) if run.facts is not None and run.facts.kind == "iterable" else None
        if costs is not None and costs.delivering < costs.workers and costs.batches >= 4 * costs.workers:
            found.append(costs.delivering)
    return max(found, default=None)


def copies_seen(loaders: list[LoaderRun]) -> str:
    """Say of workers that were all seen to deliver the same samples; empty where none were."""
    for measured in loaders:
        if measured.repeats is not None and measured.repeats.same_streams:
            workers = measured.repeats.workers_delivering
            return f"each of {workers} workers delivers the same samples; split the stream by get_worker_info()"
    return ""


def find_setting(profile: Profile | None, run: Run) -> SearchResult | None:
    """Return the best setting by the model; None where the loader's settings cannot be changed."""
    if profile is None or not profile.adaptable:
        return None
    return search(profile, profile.current, limits=limits_of(run))


def advise(
    evidence: Evidence,
    verdict: Verdict,
    limit: Limit | None,
    findings: list[Finding],
    profile: Profile | None,
    best: SearchResult | None,
) -> list[Advice]:
    """Return advice, the most useful first."""
    found = [*_for_failures(evidence)]
    if verdict in (Verdict.COMPUTE_BOUND, Verdict.COMMUNICATION_BOUND):
        found += [_leave_it(evidence, verdict)]
        if best is not None and _saves(best):
            found.append(_settings(evidence, best))
        return found
    told: set[str] = set()
    for finding in findings:
        advice = _for_finding(evidence, finding, profile, best)
        if advice is not None and (finding.misconfigured or verdict is not Verdict.UNDECIDED):
            found.append(advice)
            told.add(finding.code)
    worth = best is not None and (best.action == "change" or (_saves(best) and not _unequal_shards(evidence, told)))
    if best is not None and worth and not any(a.settings for a in found):
        found.append(_settings(evidence, best))
    if limit in FOR_LIMIT and limit is not None and not told & _NOT_THE_STAGE:
        found += _more_workers(evidence, profile)
        found.append(_for_limit(evidence, limit, profile, best))
    # What the model says would bring nothing is not worth a person's time, unless there is nothing else to say.
    found = [a for a in found if _worth(a) or (a.settings and a.code not in _FOR_SPEED)] or found
    if verdict is Verdict.BALANCED and not any(_worth(a) for a in found):
        found = [_leave_it(evidence, verdict)]
    # Settings that were predicted to help come first: they cost nothing to try.
    return sorted(found, key=lambda a: (not _worth(a), not a.settings))


def _saves(best: SearchResult) -> bool:
    """Whether fewer workers would spare enough to be worth a change."""
    now, then = best.current.setting.num_workers, best.recommended.num_workers
    return best.action == "fewer-workers" and then >= 1 and now - then >= 2


def _unequal_shards(e: Evidence, told: set[str]) -> bool:
    """Whether all workers have data, but not equally much: once they have, fewer of them are no longer as fast."""
    return "idle-workers" in told and e.costs is not None and e.costs.delivering >= e.workers


def _worth(advice: Advice) -> bool:
    return advice.gain is None or advice.gain.value > _WORTH


def _for_failures(e: Evidence) -> list[Advice]:
    found: list[Advice] = []
    for failure in e.failures:
        text = FOR_FAILURE.get(failure.kind)
        if text is not None and all(a.code != text.code for a in found):
            found.append(
                Advice(code=text.code, action=text.action, because=failure.message, wrong_when=text.wrong_when)
            )
    return found


def _leave_it(e: Evidence, verdict: Verdict) -> Advice:
    room = headroom(e)
    most = format_share(max(0.0, room.value)) if room else "an unknown amount"
    if verdict is Verdict.COMMUNICATION_BOUND:
        text = FOR_LIMIT[Limit.COMMUNICATION]
        return Advice(
            code=text.code,
            action=text.action,
            because=f"a loader that costs nothing would bring {most} at the most",
            wrong_when=text.wrong_when,
        )
    action = "change nothing in the loader"
    if verdict is Verdict.COMPUTE_BOUND:
        action += f"; {LOOK_AT_THE_STEP}"
    else:
        action += ", or add one worker for headroom"
    because = f"a loader that costs nothing would bring {most} at the most"
    if verdict is Verdict.COMPUTE_BOUND and e.ratio is not None and e.ratio > 1:
        because += f"; a step more than {e.ratio:.2g} times as fast would wait for this loader"
    return Advice(
        code="IO600",
        action=action,
        because=because,
        wrong_when="the step gets faster (another accelerator, mixed precision): then measure again",
    )


def headroom(e: Evidence) -> Estimate | None:
    """Return step rate over loop rate, minus 1: the most that the input side can bring [fraction]."""
    if e.loop is None or e.step is None:
        return None
    step, loop = e.step.samples_per_s, e.loop.samples_per_s
    if loop.value <= 0 or loop.low <= 0:
        return None
    return Estimate(step.value / loop.value - 1, step.low / loop.high - 1, step.high / loop.low - 1, loop.n)


def gain_of(new: Prediction, now: Prediction) -> Estimate:
    """Return predicted throughput over the present one, minus 1, with the model's own interval [fraction]."""
    top, bottom = _rate(new), _rate(now)
    value = top / bottom if bottom > 0 else 1.0
    # The model's errors at two settings of one profile share their sign: only the larger one counts.
    wide = max(new.samples_per_s.relative_halfwidth, now.samples_per_s.relative_halfwidth)
    return Estimate(value - 1, value * (1 - wide) - 1, value * (1 + wide) - 1, new.samples_per_s.n)


def _rate(p: Prediction) -> float:
    return p.epoch_samples_per_s or p.samples_per_s.value


def changes(new: Setting, now: Setting) -> dict[str, Any]:
    """Return the DataLoader settings in which two settings differ."""
    found: dict[str, Any] = {}
    for name in ("num_workers", "prefetch_factor", "persistent_workers", "in_order"):
        if getattr(new, name) != getattr(now, name):
            found[name] = getattr(new, name)
    if not new.num_workers:
        found = {k: v for k, v in found.items() if k == "num_workers"}
    return found


def _settings(e: Evidence, best: SearchResult) -> Advice:
    wanted = changes(best.recommended, best.current.setting)
    text = ", ".join(f"{name}={value}" for name, value in wanted.items())
    fewer = best.action == "fewer-workers"
    because, wrong_when = best.reason, "the training host has other cores, storage or neighbours than this one"
    stream, more = e.facts.kind == "iterable", best.recommended.num_workers > e.workers
    seen = shards_seen(e.run)
    if stream and more and seen is not None:
        because += f"; when more were tried, {seen} had data"
    elif stream and more and e.facts.num_shards is None:
        wrong_when += ", or the stream has fewer parts than that to share among workers"
    return Advice(
        code="IO602" if fewer else "IO601",
        action=f"set {text}" + (": as fast with less" if fewer else ""),
        because=because,
        settings=wanted,
        gain=gain_of(best.predicted, best.current),
        wrong_when=wrong_when,
    )


def _for_finding(e: Evidence, finding: Finding, profile: Profile | None, best: SearchResult | None) -> Advice | None:
    text = FOR_FINDING.get(finding.remedy or finding.code)
    if text is None:
        return None
    wanted, gain = _setting_for(e, finding, profile, best)
    action = text.action
    if wanted:
        action += " (" + ", ".join(f"{name}={value}" for name, value in wanted.items()) + ")"
    return Advice(
        code=text.code, action=action, because=finding.text, settings=wanted, gain=gain, wrong_when=text.wrong_when
    )


def _setting_for(
    e: Evidence, finding: Finding, profile: Profile | None, best: SearchResult | None
) -> tuple[dict[str, Any], Estimate | None]:
    """Return the settings that mend a finding, and their predicted gain."""
    if profile is None or not profile.adaptable:
        return ({"persistent_workers": True} if finding.code == "respawn" else {}), None
    now = profile.current
    here = best.current if best is not None else predict(profile, now)
    if finding.code == "respawn":
        target = now.at(persistent_workers=True)
        if finding.limit is Limit.OVERSUBSCRIPTION:
            target = target.at(num_workers=max(1, int(e.cores)))
        then = predict(profile, target)
        if here.epoch_samples_per_s and then.epoch_samples_per_s:
            return changes(target, now), gain_of(then, here)
        # What an epoch costs without new workers is not known: all but a rest of the edges is won.
        share = e.loop.edge_share if e.loop else 0.0
        least = 1 / max(0.05, 1 - share) - 1
        return changes(target, now), Estimate(least, 0.5 * least, 1.2 * least, here.samples_per_s.n)
    if finding.code == "too-many-workers":
        target = now.at(num_workers=max(1, int(e.cores)))
        return changes(target, now), gain_of(predict(profile, target), here)
    if finding.code == "thread-pools":
        target = now.at(num_workers=max(1, int(e.cores)))
        return (changes(target, now) if target.num_workers < now.num_workers else {}), None
    if "no-workers" in (finding.code, finding.remedy) and best is not None and best.recommended.num_workers:
        return changes(best.recommended, now), gain_of(best.predicted, here)
    if finding.code in ("bursts", "tail-in-order"):
        return _deeper(profile, now, here, in_order=finding.code == "bursts" and now.in_order)
    return {}, None


def _deeper(
    profile: Profile, now: Setting, here: Prediction, *, in_order: bool
) -> tuple[dict[str, Any], Estimate | None]:
    """Return the shallowest prefetch that brings nearly all that prefetching can bring."""
    tried = [predict(profile, now.at(in_order=in_order, prefetch_factor=f)) for f in _DEEPER if f > now.prefetch_factor]
    if not tried:
        return {}, None
    best = max(_rate(p) for p in tried)
    pick = next(p for p in tried if _rate(p) >= 0.98 * best)
    return changes(pick.setting, now), gain_of(pick, here)


_FACTOR: dict[Limit, dict[str, float]] = {
    Limit.DECODE: {"decode_x": 0.5},
    Limit.TRANSFORM: {"decode_x": 0.5},
    Limit.COLLATE: {"collate_x": 0.5},
    Limit.STORAGE_LATENCY: {"storage_x": 2.0},
    Limit.STORAGE_BANDWIDTH: {"storage_x": 2.0},
}


def _more_workers(e: Evidence, profile: Profile | None) -> list[Advice]:
    """Return advice on the workers of a DataLoader inside the loader, of which there is no model: cores lie idle."""
    run, costs, settings = e.run.loader_alone(), e.costs, e.settings
    if not e.facts.inner_loaders or (profile is not None and profile.adaptable) or costs is None or settings is None:
        return []
    if run is None or run.load is None or not e.workers or not e.cpu_bound:
        return []
    free = e.cores - run.load.own_cores - run.load.other_cores
    if free < 0.5 or costs.idle_share > 0.1 or costs.runq_share > 0.1:
        return []
    which = "the DataLoader inside" if e.facts.inner_loaders == 1 else f"one of {e.facts.inner_loaders} DataLoaders"
    wanted = e.workers + round(free)
    return [
        Advice(
            code="IO601",
            action=f"give {which} (num_workers={e.workers}, batch_size={settings.batch_size}) more workers: "
            f"num_workers={wanted}",
            because=f"its workers idle {format_share(costs.idle_share)} of their time, and {free:.1f} of {e.cores:g} "
            "cores have nothing to do",
            wrong_when="the training host has other cores, storage or neighbours than this one",
        )
    ]


def _for_limit(e: Evidence, limit: Limit, profile: Profile | None, best: SearchResult | None) -> Advice:
    alone = limit is Limit.STORAGE_LATENCY and e.scaling is not None and e.scaling.saturated
    text = ONE_AT_A_TIME if alone else FOR_LIMIT[limit]
    gain, because = None, f"{limit.value} limits the loader"
    factors = _FACTOR.get(limit)
    if profile is not None and profile.adaptable and factors and best is not None:
        twice = predict(profile, best.recommended.at(**factors))
        gain = gain_of(twice, best.predicted)
        because += "; the gain is that of twice the speed there, at the best settings"
    return Advice(code=text.code, action=text.action, because=because, gain=gain, wrong_when=text.wrong_when)
