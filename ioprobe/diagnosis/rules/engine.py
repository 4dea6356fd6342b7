"""Selects rules, judges a pipeline with them, and places each finding in the file."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

import msgspec

from ioprobe.config import Config, InlineIgnore
from ioprobe.diagnosis.rules.base import REGISTER, Abstain, Finding, Rule
from ioprobe.diagnosis.rules.facts import PipelineFacts
from ioprobe.diagnosis.types import Outcome
from ioprobe.errors import UsageError


class Ignored(NamedTuple):
    """A finding that somebody decided to live with."""

    outcome: Outcome
    reason: str
    """As written, or which list names it."""
    in_source: bool
    """True for a comment on the line itself."""


class Judged(NamedTuple):
    """What the rules say of one pipeline."""

    outcomes: list[Outcome]
    """One per finding, and one per rule that passed or abstained."""
    ignored: list[Ignored]


def selected_rules(select: Sequence[str], ignore: Sequence[str]) -> list[Rule]:
    """Return the rules that a selection by code, prefix or name leaves, by code.

    As in ruff the longer prefix wins: ``select = ["IO5"], ignore = ["IO"]`` leaves the IO5 rules.

    Raises:
        UsageError: a code, prefix or name fits no rule.
    """
    chosen = [_as_prefix(word) for word in select] or ["IO"]
    dropped = [_as_prefix(word) for word in ignore]
    rules = []
    for code in sorted(REGISTER):
        for_it = max((len(p) for p in chosen if code.startswith(p)), default=0)
        against = max((len(p) for p in dropped if code.startswith(p)), default=0)
        if for_it > against:
            rules.append(REGISTER[code])
    return rules


def _as_prefix(word: str) -> str:
    code = word.strip().upper()
    if code and any(known.startswith(code) for known in REGISTER):
        return code
    by_name = {rule.name: rule.code for rule in REGISTER.values()}
    if word.strip().lower() in by_name:
        return by_name[word.strip().lower()]
    # Any code is much like any other: one digit may be wrong.
    near = difflib.get_close_matches(code, list(REGISTER), n=1, cutoff=0.8) or difflib.get_close_matches(
        word, list(by_name), n=1
    )
    raise UsageError(
        f"no rule or prefix '{word}'",
        hint=f"did you mean '{near[0]}'?" if near else "'ioprobe rule' lists them all",
    )


def judge_pipeline(
    facts: PipelineFacts, config: Config, *, select: Sequence[str] = (), ignore: Sequence[str] = ()
) -> Judged:
    """Return what the selected rules say of a pipeline, with each finding's place in the file.

    Args:
        facts: The pipeline's facts; its name says which table of the file is meant.
        config: The file; its own selections apply.
        select: Codes, prefixes or names that replace the file's selection; empty keeps it.
        ignore: Codes, prefixes or names ignored besides the file's.

    Raises:
        UsageError: a code, prefix or name fits no rule.
    """
    table = config.pipelines.get(facts.name)
    own_select = table.select if table and table.select is not None else config.check.select
    rules = selected_rules(list(select) or own_select, list(ignore))
    lists = _ignore_lists(config, facts.name)
    comments = config.ignores_of(facts.name)
    outcomes: list[Outcome] = []
    ignored: list[Ignored] = []
    for rule in rules:
        found = rule.check(facts)
        if isinstance(found, Abstain):
            plain = _plain(rule, "abstained", found.reason, facts.name, config)
            outcomes.append(msgspec.structs.replace(plain, missing=list(found.missing)))
        elif not found:
            outcomes.append(_plain(rule, "passed", rule.name, facts.name, config))
        for finding in found if isinstance(found, list) else ():
            outcome = _placed(rule, finding, facts, config)
            waived = _waiver(rule, finding, outcome, comments, lists)
            if waived is None:
                outcomes.append(outcome)
            else:
                ignored.append(waived)
    return Judged(outcomes, ignored)


def _plain(rule: Rule, status: str, text: str, pipeline: str, config: Config) -> Outcome:
    return Outcome(name=rule.code, status=status, text=text, pipeline=pipeline, file=config.path)


# Keys of the table -> facts, where the two names differ.
_FACTS = {"timeout": "timeout_s", "seed": "seeded", "compile": "compiled"}


def _placed(rule: Rule, finding: Finding, facts: PipelineFacts, config: Config) -> Outcome:
    pipeline = facts.name
    unsaid = facts.is_default(_FACTS.get(finding.key, finding.key))
    place = config.place("pipelines", pipeline, finding.key) if finding.key else config.place("pipelines", pipeline)
    return Outcome(
        name=rule.code,
        status="failed",
        text=finding.text + (f" ({finding.key} is not set: torch's default)" if unsaid else ""),
        pipeline=pipeline,
        file=config.path,
        line=place.line if place else None,
        column=place.column if place else None,
        fix=finding.fix,
    )


def _ignore_lists(config: Config, pipeline: str) -> list[tuple[str, list[str]]]:
    """Return (where it is written, prefixes) of every list that ignores rules for a pipeline."""
    table = config.pipelines.get(pipeline)
    lists = [("[check] ignore", config.check.ignore)]
    if table is not None:
        lists.append((f"[pipelines.{pipeline}] ignore", table.ignore))
    lists += [
        (f"[check] per-pipeline '{pattern}'", codes)
        for pattern, codes in config.check.per_pipeline.items()
        if fnmatchcase(pipeline, pattern)
    ]
    return [(where, [_as_prefix(word) for word in words]) for where, words in lists]


def _waiver(
    rule: Rule,
    finding: Finding,
    outcome: Outcome,
    comments: list[InlineIgnore],
    lists: list[tuple[str, list[str]]],
) -> Ignored | None:
    for comment in comments:
        here = not comment.path or comment.path[0] == finding.key or comment.line == outcome.line
        if here and any(rule.code.startswith(code) for code in comment.codes):
            return Ignored(outcome, comment.reason or "no reason given", True)
    for where, prefixes in lists:
        if any(rule.code.startswith(prefix) for prefix in prefixes):
            return Ignored(outcome, where, False)
    return None
