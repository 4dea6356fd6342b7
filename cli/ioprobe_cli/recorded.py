"""What ``attach`` and ``profile`` do with the run of a recording."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ioprobe_cli.output import emit, new_run_folder

if TYPE_CHECKING:
    from ioprobe.run import Run


def emit_recording(run: Run, output: Path | None, format_: str) -> None:
    """Write the run file where a folder is given, and the report to stdout.

    Raises:
        OutputError: it cannot be written.
    """
    from ioprobe.diagnosis.recordings import report_recording
    from ioprobe.run import dumps, write_atomic

    path = None
    if output is not None:
        path = new_run_folder(run.kind, run.created_at, output) / "run.json"
        write_atomic(path, dumps(run))
    emit(report_recording(run, str(path) if path else None), format_)
