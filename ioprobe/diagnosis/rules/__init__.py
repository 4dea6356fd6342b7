"""The rules of ``ioprobe check``: one file a family, each rule beside its text."""

# Importing a family registers its rules.
from ioprobe.diagnosis.rules import containers, hygiene, layout, memory, queue, startup, workers
from ioprobe.diagnosis.rules.base import FAMILIES, SECTIONS, Abstain, Finding, Rule
from ioprobe.diagnosis.rules.base import REGISTER as _REGISTER
from ioprobe.diagnosis.rules.engine import Ignored, Judged, judge_pipeline, selected_rules
from ioprobe.diagnosis.rules.facts import PipelineFacts
from ioprobe.diagnosis.rules.gather import gather

RULES: dict[str, Rule] = dict(sorted(_REGISTER.items()))
"""All rules by code."""

__all__ = [
    "FAMILIES",
    "RULES",
    "SECTIONS",
    "Abstain",
    "Finding",
    "Ignored",
    "Judged",
    "PipelineFacts",
    "Rule",
    "containers",
    "gather",
    "hygiene",
    "judge_pipeline",
    "layout",
    "memory",
    "queue",
    "selected_rules",
    "startup",
    "workers",
]
