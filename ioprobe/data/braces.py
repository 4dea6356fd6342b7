"""Brace expressions in dataset URLs, as a shell expands them."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

from ioprobe.errors import UsageError
from ioprobe.secrets import redact_url

MAX_SHARDS = 5_000_000
"""Bound of one brace expression; a typo like {0..1e12} must not fill memory."""
MOST_CHARS = 1 << 30
"""Bound of all those names together."""
MOST_BRACES = 200
_RANGE = re.compile(r"^(-?[0-9]{1,18})\.\.(-?[0-9]{1,18})(?:\.\.(-?[0-9]{1,18}))?$")


def expand_braces(pattern: str, limit: int = MAX_SHARDS) -> list[str]:
    """Return every string that a brace expression stands for, as a shell would.

    Ranges keep their zero padding; groups nest; a group without comma or range stays as it is.

    Raises:
        UsageError: more than ``limit`` strings, or a brace is not closed.

    >>> expand_braces("a-{08..10}.{tar,gz}")
    ['a-08.tar', 'a-08.gz', 'a-09.tar', 'a-09.gz', 'a-10.tar', 'a-10.gz']
    >>> expand_braces("{a,b{1..2}}"), expand_braces("plain"), expand_braces("{x}")
    (['a', 'b1', 'b2'], ['plain'], ['{x}'])
    """
    if pattern.count("{") > MOST_BRACES:
        raise UsageError(f"'{redact_url(pattern)[:80]}...' has more than {MOST_BRACES} braces", hint="name a folder")
    # A name may be as long as the pattern.
    limit = min(limit, MOST_CHARS // (len(pattern) + 1))
    expanded = list(itertools.islice(_expand(pattern, pattern), limit + 1))
    if len(expanded) > limit:
        raise UsageError(f"'{redact_url(pattern)}' stands for more than {limit:,} names", hint="check its ranges")
    return expanded


def _expand(text: str, whole: str) -> Iterator[str]:
    start = text.find("{")
    if start < 0:
        yield text
        return
    end = _closing(text, start, whole)
    head, body, tail = text[:start], text[start + 1 : end], text[end + 1 :]
    for middle in _alternatives(body, whole):
        for rest in _expand(tail, whole):
            yield head + middle + rest


def _closing(text: str, start: int, whole: str) -> int:
    depth = 0
    for place in range(start, len(text)):
        depth += (text[place] == "{") - (text[place] == "}")
        if depth == 0:
            return place
    raise UsageError(f"a brace is not closed in '{redact_url(whole)}'", hint="write {000..127} or {a,b}")


def _alternatives(body: str, whole: str) -> Iterator[str]:
    match = _RANGE.match(body)
    if match:
        low, high, step = match.groups()
        bare = (low.lstrip("-"), high.lstrip("-"))
        # As in a shell: one padded end pads all.
        width = max(map(len, bare)) if any(len(b) > 1 and b[0] == "0" for b in bare) else 0
        first, last = int(low), int(high)
        stride = abs(int(step)) if step and int(step) else 1
        sign = 1 if last >= first else -1
        for number in range(first, last + sign, sign * stride):
            yield f"{'-' if number < 0 else ''}{abs(number):0{width}d}" if width else str(number)
        return
    parts = _split_commas(body)
    if len(parts) == 1:
        # As in a shell, a group without comma or range is literal, its inner groups are not.
        yield from ("{" + inner + "}" for inner in _expand(body, whole))
        return
    for part in parts:
        yield from _expand(part, whole)


def _split_commas(body: str) -> list[str]:
    parts, depth, last = [], 0, 0
    for place, letter in enumerate(body):
        depth += (letter == "{") - (letter == "}")
        if letter == "," and depth == 0:
            parts.append(body[last:place])
            last = place + 1
    return [*parts, body[last:]]
