"""Every error that ioprobe raises on purpose.

    IoprobeError            something in the user's world is wrong; one line, a hint
    ├── UsageError          an option, a key or a combination that cannot be meant
    ├── ConfigError         ioprobe.toml: names file, key path and what was expected
    ├── TargetError         the dataset URL or the factory cannot be used
    │   └── DataError       the data itself: names shard, member or offset
    ├── StoreError          a file system or an object store refused, failed or stalled
    ├── MeasureError        a measurement could not be completed (worker died, time-out, ...)
    ├── RunFileError        a saved run or a recording cannot be read
    └── OutputError         a result cannot be written

``ValueError`` is kept for the caller's bugs. The library never exits and never
prints; the command line turns these into one line, a hint and an exit code.
"""

from __future__ import annotations


class IoprobeError(Exception):
    """A fault that a person can mend.

    Args:
        message: What could not be done, the thing, what was found, what was expected.
        hint: What to do next, as an imperative sentence; may be empty.
    """

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.message, self.hint))


def _rebuild(kind: type[IoprobeError], message: str, hint: str) -> IoprobeError:
    return kind(message, hint=hint)


class UsageError(IoprobeError):
    """An option or a combination of options that cannot be meant."""


class ConfigError(IoprobeError):
    """``ioprobe.toml`` is wrong; the message names file, key path and the expectation."""


class TargetError(IoprobeError):
    """The dataset URL or the factory cannot be used."""


class DataError(TargetError):
    """The data itself is wrong; the message names shard and member or offset."""


class StoreError(IoprobeError):
    """A file system or an object store refused, failed or stalled."""


class MeasureError(IoprobeError):
    """A measurement could not be completed."""


class RunFileError(IoprobeError):
    """A saved run or a recording cannot be read."""


class OutputError(IoprobeError):
    """A result cannot be written."""
