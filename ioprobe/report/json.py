"""The report as JSON, for scripts: the field names are a contract (``ioprobe schema report``)."""

from __future__ import annotations

import msgspec

from ioprobe.diagnosis.types import Report


def render(report: Report) -> str:
    """Return the report as one JSON object, indented, with a newline at its end.

    A number that is not finite becomes ``null``: JSON has no infinity, and a
    reader that gets one as text would compute with it.
    """
    return msgspec.json.format(msgspec.json.encode(report), indent=2).decode() + "\n"
