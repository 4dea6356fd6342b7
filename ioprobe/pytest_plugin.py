"""``pytest --ioprobe-check ioprobe.toml``: each pipeline of a config becomes a test.

Static: the config is judged by the rules, with the ``load`` setting of its ``[check]`` table; nothing is measured.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--ioprobe-check``."""
    parser.getgroup("ioprobe").addoption(
        "--ioprobe-check",
        action="append",
        default=[],
        metavar="FILE",
        help="Judge the loader configs of FILE (ioprobe.toml or pyproject.toml), a test per pipeline.",
    )


def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    """Append a test per pipeline."""
    for file in config.getoption("--ioprobe-check"):
        items.extend(_items(session, file))


def _items(session: pytest.Session, file: str) -> Iterator[pytest.Item]:
    from ioprobe.config import load_config
    from ioprobe.errors import IoprobeError

    try:
        settings = load_config(file)
        settings.pipeline(next(iter(settings.pipelines), None))
    except IoprobeError as error:
        raise pytest.UsageError(error.message + (f" ({error.hint})" if error.hint else "")) from None
    for name in settings.pipelines:
        yield PipelineItem.from_parent(session, name=f"ioprobe-check {file} [{name}]", settings=settings, pipeline=name)


class CheckFailed(Exception):
    """The rules object; the text says to what."""


class PipelineItem(pytest.Item):
    """The judgement of one pipeline."""

    def __init__(self, *, settings: Any, pipeline: str, **rest: Any) -> None:
        super().__init__(**rest)
        self.settings, self.pipeline = settings, pipeline

    def runtest(self) -> None:
        """Judge it; fails with the report's text."""
        from ioprobe.check.pipelines import CheckRequest, check
        from ioprobe.report.check import render_text

        request = CheckRequest(
            config=self.settings,
            pipelines=(self.pipeline,),
            load=self.settings.check.load,
            load_timeout_s=self.settings.check.load_timeout_s,
        )
        report = check(request)
        if report.exit_code() != 0:
            raise CheckFailed(render_text(report).rstrip())

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """Show the report, not a traceback."""
        if isinstance(excinfo.value, CheckFailed):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[str, int | None, str]:
        """Say where the pipeline stands."""
        place = self.settings.place("pipelines", self.pipeline)
        return self.settings.path, place.line - 1 if place else None, self.name
