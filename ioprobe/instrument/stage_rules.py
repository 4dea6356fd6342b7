"""What a rule of the stage classifier looks like. The tables are in ``stage_anchors`` and ``stage_leaves``.

A pattern is one or more globs with spaces between them. For frames a glob is ``module:function`` (the function without
its class), for calls the dotted call as written. ``*`` matches any run of characters. Within a table the first match
wins.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import Enum
from functools import lru_cache
from typing import NamedTuple

from ioprobe.run import Stage


@lru_cache(maxsize=1024)
def pattern(globs: str) -> re.Pattern[str]:
    """Return globs, with spaces between them, as one expression that matches from the start to the end.

    >>> bool(pattern("PIL.*:* zlib:decompress").match("PIL.Image:open"))
    True
    """
    parts = [re.escape(g).replace(r"\*", ".*").replace(r"\?", ".") for g in globs.split()]
    return re.compile("(?:" + "|".join(parts) + r")\Z" if parts else r"(?!)")


class Region(Enum):
    """What asked for the work that a stack shows."""

    FETCH = "fetch"
    """The DataLoader's fetcher; resolved into DATASET or COLLATE by what it calls."""
    DATASET = "dataset"
    COLLATE = "collate"
    WORKER_LOOP = "worker loop"
    PIN_LOOP = "pin loop"
    NEXT = "next"
    """The main thread inside the loader's ``__next__``."""
    STEP = "step"
    SETTLED = "settled"
    """A region whose anchor settles the stage alone."""
    NONE = "none"


class Anchor(NamedTuple):
    """A frame that names the region of every frame below it."""

    name: str
    region: Region
    frames: str
    settles: Stage | None = None
    """Stage of everything below, whatever the leaf."""
    default: Stage | None = None
    """Stage where no leaf rule matches."""
    main_only: bool = False
    """Not looked for in workers, nor anywhere inside a fetch."""


class Rule(NamedTuple):
    """A leaf: a frame or a call that tells the stage."""

    name: str
    stage: Stage
    frames: str = ""
    calls: str = ""
    where: str = "any"
    """``data`` (below a dataset), ``main`` (not below a dataset) or ``any``."""
    innermost: bool = False
    """Only where the frame is the innermost one, that is, C code runs in it."""
    files: str = ""
    """For the user's own rules: globs on the file's path."""
    weak: bool = False
    """Says little (a sleep, plain arithmetic): the name of the user's function around it says more, and goes first."""

    def applies(self, data: bool) -> bool:
        """Return whether the rule is meant for this side."""
        return self.where == "any" or (self.where == "data") == data

    def matches(self, places: Iterable[str], call: str, file: str) -> bool:
        """Return whether a frame is meant: one of its ``module:function`` or its call, and its file.

        A rule that names only files means every frame in them.
        """
        if self.files and not pattern(self.files).match(file):
            return False
        if not self.frames and not self.calls:
            return bool(self.files)
        named = self.frames and any(pattern(self.frames).match(place) for place in places)
        return bool(named or (call and self.calls and pattern(self.calls).match(call)))
