"""JUnit XML: a suite per pipeline, a case per rule and budget."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from ioprobe.diagnosis.check import CheckReport
from ioprobe.diagnosis.types import Outcome
from ioprobe.report.check import place_of, rule_name

# XML 1.0 has no way to write these at all.
_FORBIDDEN = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def render(report: CheckReport) -> str:
    """Return the report as JUnit XML.

    A failed rule is a failure; an undecided budget and a pipeline that could not be judged are errors; a rule that
    abstained or is waived is skipped. Nothing is timed, so times are 0.
    """
    root = ElementTree.Element("testsuites", name="ioprobe check")
    for pipeline in report.pipelines:
        own = report.of(pipeline)
        waived = [i for i in report.ignored if (i.outcome.file, i.outcome.pipeline) == (pipeline.file, pipeline.name)]
        name = f"{pipeline.file} {pipeline.name}".strip()
        suite = ElementTree.SubElement(root, "testsuite", name=_clean(name))
        for outcome in own:
            _case(suite, outcome)
        for ignored in waived:
            case = _element(suite, ignored.outcome)
            ElementTree.SubElement(case, "skipped", message=_clean(f"ignored: {ignored.reason}"))
        _count(suite, report.created_at)
    if report.errors:
        suite = ElementTree.SubElement(root, "testsuite", name="not judged")
        for error in report.errors:
            case = ElementTree.SubElement(suite, "testcase", name=_clean(error), classname="ioprobe", time="0")
            ElementTree.SubElement(case, "error", message=_clean(error), type="no-verdict").text = _clean(error)
        _count(suite, report.created_at)
    for name in ("tests", "failures", "errors"):
        root.set(name, str(sum(int(suite.get(name, "0")) for suite in root)))
    root.set("time", "0")
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _element(suite: ElementTree.Element, outcome: Outcome) -> ElementTree.Element:
    name = f"{outcome.name} {rule_name(outcome)}".strip()
    return ElementTree.SubElement(
        suite, "testcase", name=_clean(name), classname=_clean(f"ioprobe.{outcome.pipeline}"), time="0"
    )


def _case(suite: ElementTree.Element, outcome: Outcome) -> None:
    case = _element(suite, outcome)
    if outcome.status == "passed":
        return
    if outcome.status == "abstained":
        ElementTree.SubElement(case, "skipped", message=_clean(outcome.text))
        return
    tag, kind = ("failure", "rule") if outcome.status == "failed" else ("error", "undecided")
    body = f"{place_of(outcome)}{outcome.text}" + (f"\nfix: {outcome.fix}" if outcome.fix else "")
    ElementTree.SubElement(case, tag, message=_clean(outcome.text), type=kind).text = _clean(body)


def _count(suite: ElementTree.Element, created_at: str) -> None:
    suite.set("tests", str(len(suite.findall("testcase"))))
    suite.set("failures", str(len(suite.findall("testcase/failure"))))
    suite.set("errors", str(len(suite.findall("testcase/error"))))
    suite.set("skipped", str(len(suite.findall("testcase/skipped"))))
    suite.set("time", "0")
    suite.set("hostname", "localhost")
    # The schema wants a local time without zone or fraction.
    suite.set("timestamp", _clean(created_at)[:19])


def _clean(text: str) -> str:
    return _FORBIDDEN.sub("�", text)
