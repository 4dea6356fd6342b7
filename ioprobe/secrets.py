"""Credentials in URLs, command lines, variables and messages: told apart by where they stand, and left out."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

HIDDEN = "***"
_SHORTEST = 6
"""Characters; what is shorter is found in too many words that are none."""
# A secret may hold slashes (AWS secrets do), so with 'user:' everything up to the next '@' goes.
_USER = re.compile(r"://(?:[^/@:]*:[^@]*@|[^/@]*@)")
# In a glob '?' stands for one character; a query has '=' in it.
_QUERY = re.compile(r"[?#][^?#]*=.*$")
_USER_IN_TEXT = re.compile(r"://(?:[^\s/@:'\"]*:[^\s@'\"]*@|[^\s/@'\"]*@)")
_QUERY_IN_TEXT = re.compile(r"\?[^\s'\"<>]*=[^\s'\"<>]*")
_NAME = re.compile(
    r"(?:^|_)(?:secret|passw(?:or)?d|pwd|token|credentials?|api_?key|access_?key(?:_id)?|private_?key|account_?key)"
    r"(?:$|_)",
    re.IGNORECASE,
)
_PLACE = re.compile(r"_(?:file|path|dir|sock)$", re.IGNORECASE)


def redact_url(url: str) -> str:
    """Return the URL without user, password, query and fragment, for messages and reports.

    >>> redact_url("s3://KEY:SECRET@bucket/x.tar?X-Amz-Signature=abc")
    's3://bucket/x.tar'
    >>> redact_url("simplecache::s3://KEY:SE/CRET@bucket/x-?.tar")
    'simplecache::s3://bucket/x-?.tar'
    >>> redact_url("data/train-{000..127}.tar")
    'data/train-{000..127}.tar'
    """
    if "://" not in url or url.startswith("file://"):
        return url
    # '::' joins fsspec's chained URLs; each may have credentials.
    return "::".join(_QUERY.sub("", _USER.sub("://", part)) for part in url.split("::"))


def scrub(text: str) -> str:
    """Return a message without the queries and users of URLs in it, which may be signatures and secrets.

    >>> scrub("403, url='https://k:s@host/x.tar?X-Amz-Signature=abc'")
    "403, url='https://host/x.tar'"
    """
    return _QUERY_IN_TEXT.sub("", _USER_IN_TEXT.sub("://", text))


def is_secret(name: str) -> bool:
    """Whether an option or a variable of this name holds a credential.

    >>> is_secret("AWS_SECRET_ACCESS_KEY"), is_secret("--hf-token"), is_secret("max_tokens"), is_secret("TOKEN_FILE")
    (True, True, False, False)
    >>> is_secret("MY_PWD"), is_secret("PWD")  # a shell's PWD is the folder it stands in
    (True, False)
    """
    if name == "PWD":
        return False
    name = name.lstrip("-").replace("-", "_")
    return _NAME.search(name) is not None and _PLACE.search(name) is None


def secrets_of(named: Mapping[str, object]) -> list[str]:
    """Return the values of those variables or options that hold credentials, long ones first."""
    values = {v for name, v in named.items() if isinstance(v, str) and len(v) >= _SHORTEST and is_secret(name)}
    return sorted(values, key=len, reverse=True)


def hide(text: str, *named: Mapping[str, object]) -> str:
    """Return text without the credentials that variables or options hold, nor those of URLs in it.

    >>> hide("401 for hf_abcdef", {"HF_TOKEN": "hf_abcdef"})
    '401 for ***'
    """
    for values in named:
        for value in secrets_of(values):
            text = text.replace(value, HIDDEN)
    return scrub(text)


def hide_in_file(path: Path, *named: Mapping[str, object]) -> None:
    """Do the same to a log, line by line; one that needs it not, or cannot be written, stays as it is."""
    fresh = path.with_name(f".{path.name}.tmp")
    changed = False
    with suppress(OSError):
        with open(path, errors="surrogateescape", newline="") as old, open(fresh, "w", errors="surrogateescape") as new:
            for line in old:
                kept = hide(line, *named)
                changed = changed or kept != line
                new.write(kept)
        if changed:
            fresh.chmod(path.stat().st_mode & 0o777)
            fresh.replace(path)
    fresh.unlink(missing_ok=True)


def redact_words(words: Iterable[str]) -> list[str]:
    """Return a command line's words without credentials: ``--token X``, ``API_KEY=X``, users and queries of URLs."""
    kept: list[str] = []
    follows = False
    for word in words:
        name, equals, _ = word.partition("=")
        if follows:
            kept.append(HIDDEN)
            follows = False
        elif is_secret(name) and equals:
            kept.append(f"{name}={HIDDEN}")
        else:
            follows = word.startswith("-") and is_secret(word)
            kept.append(redact_url(word))
    return kept
