"""The whole job: measure through the probes, diagnose, and build the report.

Submodules: ``request`` (what is asked), ``session`` (measure), ``reporting``
(run to report). Importing this package pulls neither torch nor numpy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ioprobe.analysis.reporting import report_from_run as report_from_run
    from ioprobe.analysis.request import Request as Request
    from ioprobe.analysis.session import analyze as analyze

__all__ = ["Request", "analyze", "report_from_run"]

_PLACES = {"Request": "request", "analyze": "session", "report_from_run": "reporting"}


def __getattr__(name: str) -> Any:
    if name in _PLACES:
        import importlib

        return getattr(importlib.import_module(f"ioprobe.analysis.{_PLACES[name]}"), name)
    raise AttributeError(name)
