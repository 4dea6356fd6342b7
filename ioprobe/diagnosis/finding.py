"""A cause of the stall, as the tests for causes return it."""

from __future__ import annotations

from dataclasses import dataclass

from ioprobe.run import Limit


@dataclass(frozen=True)
class Finding:
    """One cause."""

    code: str
    limit: Limit | None
    misconfigured: bool
    """True where a setting or a data layout, not a resource, is to blame."""
    strength: float
    """How much of the stall it explains, 0..1; findings are ranked by it."""
    text: str
    """The evidence in one sentence, with numbers."""
    remedy: str = ""
    """Key of the remedy where that is not the one of the code."""


LAYOUT_FINDINGS = 0.99
"""Strength of a finding that is to blame whatever the stall: wrong data, not slow data."""
