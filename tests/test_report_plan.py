"""A plan's text, its chart, and the page that shows it."""

from __future__ import annotations

import json
from pathlib import Path

import chromium
import msgspec
import pytest
import report_examples as examples
from rich.cells import cell_len

from ioprobe.diagnosis.types import Plan, PlanPoint
from ioprobe.report import plan as report_plan


def test_a_wide_table_is_split_and_not_cut() -> None:
    lines = report_plan.render_text(examples.plan(), width=80).splitlines()
    assert lines[0] == "PLAN  resnet50 on h100"
    assert "  n  samples/s           bound by  efficiency    storage  requests/s  cores" in lines
    assert "128    190,000  storage-bandwidth       61.8%  21.9 GB/s      19,000  1,727" in lines
    assert "  n  hosts  connections  USD/1M samples" in lines
    assert "128     16          475           0.468" in lines
    assert max(cell_len(line) for line in lines) <= 80
    assert "…" not in "".join(lines)


def test_a_column_without_figures_is_left_out() -> None:
    bare = Plan(
        title="x",
        summary="",
        created_at="",
        version="0",
        points=[PlanPoint(n=n, samples_per_s=10.0 * n) for n in (1, 2)],
    )
    assert report_plan.table(bare) == (["n", "samples/s"], [["1", "10"], ["2", "20"]])


def test_the_chart_bends_where_the_store_binds() -> None:
    chart = report_plan.chart(examples.plan())
    assert chart is not None
    assert chart.log
    assert [dot.kind for dot in chart.dots] == ["b0"] * 7 + ["b1"] * 3
    assert chart.bindings == [("b0", "step"), ("b1", "storage-bandwidth")]
    assert len({dot.y for dot in chart.dots[7:]}) == 1
    # Logarithmic on both axes: equal factors are equal distances.
    steps = {round(b.x - a.x, 1) for a, b in zip(chart.dots, chart.dots[1:], strict=False)}
    assert max(steps) - min(steps) <= 0.1
    assert chart.dots[7].text == "128 accelerators: 190,000 samples/s, bound by storage-bandwidth"


def test_one_point_makes_no_chart() -> None:
    one = msgspec.structs.replace(examples.plan(), points=examples.plan().points[:1])
    assert report_plan.chart(one) is None
    assert "<figure" not in report_plan.render_html(one)


def test_json_holds_the_points() -> None:
    data = json.loads(report_plan.render_json(examples.plan()))
    assert data["points"][7]["n"] == 128
    assert data["points"][7]["binding"] == "storage-bandwidth"
    assert {"samples_per_s", "storage_bytes_per_s", "iops", "cores", "hosts", "scaling_efficiency", "cost"} <= data[
        "points"
    ][0].keys()


def test_markdown_has_one_row_for_each_n() -> None:
    text = report_plan.render_markdown(examples.plan())
    assert "| 128 | 190,000 | storage-bandwidth | 61.8% | 21.9 GB/s | 19,000 | 1,727 | 16 | 475 | 0.468 |" in text
    assert "| price of an accelerator | 2.50 USD/h | --price |" in text


def test_hostile_names_stay_text() -> None:
    evil = msgspec.structs.replace(
        examples.plan(),
        title=examples.HOSTILE,
        summary=examples.HOSTILE,
        points=[PlanPoint(n=n, samples_per_s=1.0 * n, binding=examples.HOSTILE) for n in (1, 2)],
    )
    page = report_plan.render_html(evil)
    assert "<img" not in page
    assert page.count("</script>") == 1
    assert "\x1b" not in page + report_plan.render_text(evil)


@pytest.mark.browser
@pytest.mark.skipif(chromium.BINARY is None, reason="no Chromium here: apt-get install chromium")
def test_a_browser_draws_the_chart_on_a_phone(tmp_path: Path) -> None:
    place = tmp_path / "plan.html"
    place.write_text(report_plan.render_html(examples.plan()))
    with chromium.open_page(place) as page:
        page.call("Emulation.setDeviceMetricsOverride", width=360, height=740, deviceScaleFactor=2, mobile=True)
        assert page.complaints == []
        assert [url for url in page.requests if not url.startswith(("file://", "data:"))] == []
        assert page.value("document.querySelectorAll('path.dots').length") == 10
        assert page.value("document.querySelector('path.line').getBoundingClientRect().width") > 200
        assert page.value("document.documentElement.scrollWidth") == 360
