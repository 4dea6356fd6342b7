"""What a rule is, what it may say, and the register of all of them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Literal

import msgspec

from ioprobe.diagnosis.rules.facts import PipelineFacts

Level = Literal["error", "warning"]
SECTIONS = ("What it sees", "Why it matters", "When it is wrong", "Example")


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that a rule objects to."""

    text: str
    """One sentence with the numbers."""
    fix: str
    """Imperative sentence, with a number where there is one."""
    key: str = ""
    """Key of the pipeline's table to point at."""


class Abstain(msgspec.Struct, frozen=True):
    """The rule lacks facts and does not guess."""

    reason: str
    """What is missing, and how to give it."""
    missing: tuple[str, ...] = ()
    """The facts that it lacks, in the words of the config."""


# Facts that follow from others, or that the config words otherwise.
_WORDS = {
    "consumers": "num_workers",
    "depth": "prefetch_factor",
    "timeout_s": "timeout",
    "seeded": "seed",
    "compiled": "compile",
    "sample_s": "sample_ms",
    "sample_p99_s": "sample_p99_ms",
    "sampler_s": "sampler_ms",
    "step_s": "step_ms",
}


def unknown(facts: PipelineFacts, *names: str, how: str = "") -> Abstain:
    """Return the abstention of a rule that needs these facts; it names those that are not known.

    Args:
        facts: What is known of the pipeline.
        names: Fields of the facts.
        how: What they are, or where else they can come from.
    """
    lacking = [name for name in names if getattr(facts, name) in (None, "", {})] or names
    missing = tuple(dict.fromkeys(_WORDS.get(name, name) for name in lacking))
    return Abstain(f"not known: {', '.join(missing)}" + (f" ({how})" if how else ""), missing)


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """One rule: its code, its text, and its judgement of a pipeline's facts."""

    code: str
    name: str
    level: Level
    """``error`` where the job breaks or sees wrong data, ``warning`` where it costs time or memory."""
    summary: str
    sections: dict[str, str]
    """The four sections of its explanation."""
    needs: tuple[str, ...]
    """Facts without which it abstains."""
    key: str
    check: Callable[[PipelineFacts], list[Finding] | Abstain]

    @property
    def family(self) -> str:
        """What the code's first digit stands for."""
        return FAMILIES[self.code[2]]


FAMILIES = {
    "1": "workers and queue",
    "2": "memory",
    "3": "data layout",
    "4": "start-up and processes",
    "5": "hygiene",
}
REGISTER: dict[str, Rule] = {}
Check = Callable[[PipelineFacts], "list[Finding] | Abstain"]


def rule(code: str, name: str, *, level: Level = "warning", needs: str = "", key: str = "") -> Callable[[Check], Check]:
    """Register a rule; its docstring is its explanation.

    Args:
        code: ``IO`` and three digits; the first is the family.
        name: Words with dashes.
        level: Whether the job breaks or only pays.
        needs: Names of facts, space between; where one is None, the rule abstains.
        key: Key of the pipeline's table that its findings point at by default.
    """

    def register(function: Check) -> Check:
        summary, sections = _sections(function.__doc__ or "")
        wanted = tuple(needs.split())

        def check(facts: PipelineFacts) -> list[Finding] | Abstain:
            missing = [fact for fact in wanted if getattr(facts, fact) is None]
            if missing:
                return unknown(facts, *missing)
            found = function(facts)
            if isinstance(found, Abstain) or not key:
                return found
            return [f if f.key else msgspec.structs.replace(f, key=key) for f in found]

        if code in REGISTER:
            raise ValueError(f"rule {code} is registered twice")
        REGISTER[code] = Rule(
            code=code,
            name=name,
            level=level,
            summary=summary,
            sections=sections,
            needs=wanted,
            key=key,
            check=check,
        )
        return function

    return register


def _sections(doc: str) -> tuple[str, dict[str, str]]:
    """Return a docstring's first line and its sections; each starts with its title and a colon."""
    pieces = re.split(rf"^\s*({'|'.join(SECTIONS)}):", doc, flags=re.MULTILINE)
    found = {
        title: _dedent(body) if title == "Example" else " ".join(body.split())
        for title, body in zip(pieces[1::2], pieces[2::2], strict=True)
    }
    missing = [title for title in SECTIONS if not found.get(title)]
    if missing:
        raise ValueError(f"rule text lacks {missing}")
    return " ".join(pieces[0].split()), found


def _dedent(body: str) -> str:
    lines = body.strip("\n").rstrip().splitlines()
    margin = min(len(line) - len(line.lstrip()) for line in lines if line.strip())
    return "\n".join(line[margin:] for line in lines)
