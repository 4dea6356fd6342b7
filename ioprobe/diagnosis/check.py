"""What ``ioprobe check`` found: all that its renderers get."""

from __future__ import annotations

from typing import Any

import msgspec

from ioprobe.diagnosis.types import Outcome
from ioprobe.run import Caveat, json_schema

# 1 (2026-11-28): first version.
CHECK_SCHEMA = 1


class CheckedPipeline(msgspec.Struct, frozen=True, kw_only=True):
    """One pipeline, and on what it was judged."""

    name: str
    file: str = ""
    """The config that it stands in; with the name it tells pipelines apart."""
    target: str = ""
    """With credentials removed."""
    host: str = ""
    """The training host in words, and where that comes from."""
    known: dict[str, str] = {}
    """Facts that were known, by name, with their source."""
    measured_s: float | None = None
    """Length of a fresh measurement [s]; None where none was made."""


class IgnoredOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """A finding that the file waives."""

    outcome: Outcome
    reason: str
    in_source: bool


class CheckReport(msgspec.Struct, frozen=True, kw_only=True):
    """Every rule and budget, judged."""

    schema: int = CHECK_SCHEMA
    kind: str = "check"
    created_at: str
    """UTC, ISO 8601."""
    version: str
    config: str = ""
    """The file, or empty."""
    pipelines: list[CheckedPipeline] = []
    outcomes: list[Outcome] = []
    ignored: list[IgnoredOutcome] = []
    errors: list[str] = []
    """What could not be judged at all, one line each; any of them makes exit code 2."""
    caveats: list[Caveat] = []

    def count(self, status: str) -> int:
        """Return how many rules and budgets have a status."""
        return sum(outcome.status == status for outcome in self.outcomes)

    def of(self, pipeline: CheckedPipeline) -> list[Outcome]:
        """Return a pipeline's own outcomes."""
        return [o for o in self.outcomes if o.pipeline == pipeline.name and o.file == pipeline.file]

    def exit_code(self, undecided: str = "fail") -> int:
        """Return 1 where a rule or budget failed, 2 where something could not be judged, else 0.

        Args:
            undecided: ``fail`` and ``retry`` make an undecided budget code 2 (no verdict), ``pass`` lets it pass.
        """
        if self.count("failed"):
            return 1
        if self.errors or (undecided != "pass" and self.count("undecided")):
            return 2
        return 0


def check_schema() -> dict[str, Any]:
    """Return the JSON Schema of the check report."""
    return json_schema(CheckReport)
