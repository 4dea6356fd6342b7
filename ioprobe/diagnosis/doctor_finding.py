"""One thing looked at on a host, and how it is judged."""

from __future__ import annotations

import msgspec


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing looked at."""

    code: str
    """Short and stable, such as ``other-load``."""
    status: str
    """``ok``, ``note`` (good to know) or ``warn`` (spoils or forbids something)."""
    found: str
    """What is there, with numbers."""
    limits: str = ""
    """What that spoils or forbids."""
    fix: str = ""
    """What to do."""


def judged(bad: bool, code: str, found: str, limits: str, fix: str, status: str = "warn") -> Finding:
    """A finding that is well, or else has a status, what it limits and a fix."""
    if not bad:
        return Finding(code=code, status="ok", found=found)
    return Finding(code=code, status=status, found=found, limits=limits, fix=fix)
