"""The page: complete, safe, small, and drawn by a real browser without asking the network."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import chromium
import pytest
import report_examples as examples

from ioprobe.diagnosis.types import Timeline
from ioprobe.report import figures, html

browser = pytest.mark.skipif(chromium.BINARY is None, reason="no Chromium here: apt-get install chromium")
VOID = {"meta", "link", "br", "input", "img"}


class Markup(HTMLParser):
    """Collects tags, attributes and whether every element was closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open[-1:] == [tag], f"</{tag}> closes {self.open[-3:]}"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        self.text += data


def count(markup: Markup, tag: str, **wanted: str) -> int:
    return sum(
        1
        for name, attrs in markup.tags
        if name == tag and all(wanted[k] in (attrs.get(k) or "").split() for k in wanted)
    )


@pytest.mark.parametrize("name", examples.ALL)
def test_every_story_gives_a_well_formed_page(name: str) -> None:
    markup = Markup(html.render(examples.ALL[name]()))
    assert markup.open == []
    assert count(markup, "h1") == 1
    ids = [attrs["id"] for _, attrs in markup.tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    named = {attrs["aria-labelledby"] for _, attrs in markup.tags if "aria-labelledby" in attrs}
    assert named <= set(ids)


@pytest.mark.parametrize("name", examples.ALL)
def test_the_page_names_no_other_resource(name: str) -> None:
    markup = Markup(html.render(examples.ALL[name]()))
    assert [attrs["href"] for _, attrs in markup.tags if "href" in attrs] == ["data:,"]
    assert not [attrs for _, attrs in markup.tags if {"src", "srcset", "action", "data"} & attrs.keys()]
    css = html._source("page.css")
    assert "url(" not in css
    assert "@import" not in css


def test_hostile_names_stay_text() -> None:
    page = html.render(examples.hostile())
    markup = Markup(page)
    assert count(markup, "img") == 0
    assert count(markup, "script") == 2
    assert not [attrs for _, attrs in markup.tags if any(key.startswith("on") for key in attrs)]
    assert "{{ 7*7 }}" in markup.text
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e]", page)


def test_the_policy_admits_the_pages_own_script_and_nothing_else() -> None:
    page = html.render(examples.data_bound())
    script = page[page.rindex("<script>") + len("<script>") : page.rindex("</script>")]
    assert html._hash(script) in page
    policy = re.search('Content-Security-Policy" content="([^"]*)"', page)
    assert policy is not None
    assert "default-src 'none'" in policy[1]
    assert "unsafe-inline" not in policy[1].split("script-src")[1].split(";")[0]


def test_figures_that_were_not_measured_say_so() -> None:
    text = Markup(html.render(examples.partial())).text
    assert text.count("not measured") == 3  # the stall share and two rungs


def test_a_missed_prediction_is_said() -> None:
    page = html.render(examples.data_bound())
    assert page.count("The prediction missed: the real run gained less.") == 1
    assert page.count("The real run agreed with the prediction.") == 1


def test_empty_sections_are_left_out() -> None:
    text = Markup(html.render(examples.plain())).text
    for heading in (
        "Ladder",
        "What to change",
        "What if",
        "Timeline",
        "Stages",
        "Ranks",
        "What failed",
        "Read with care",
    ):
        assert f"\n{heading}" not in text.partition("Glossary")[0]


def test_the_panel_holds_a_curve_for_every_combination() -> None:
    page = html.render(examples.data_bound())
    data = json.loads(page.split('id="whatif-data">')[1].split("</script>")[0])
    assert data["workers"] == [0, 1, 2, 3, 4, 6, 8, 10, 12, 16]
    assert sorted(data["curves"]) == ["0,0", "0,1", "0,2", "1,0", "1,1", "1,2"]
    assert (data["base"], data["current"], data["advised"]) == ("0,1", 2, 6)
    assert data["curves"]["0,1"][5] == {
        "workers": 6,
        "x": 37.5,
        "predicted": "512 samples/s ±4%",
        "measured": "505 samples/s ±1%",
        "stall": "1.3% ±0.03",
        "change": "+136%",
    }


def test_the_timeline_keeps_the_share_of_waiting_when_it_is_aggregated() -> None:
    fine = figures.timeline(examples.timeline(batches=300, warmup=0))
    coarse = figures.timeline(examples.timeline(batches=2000, warmup=0))
    assert fine is not None
    assert coarse is not None
    assert fine.columns == 300
    assert coarse.columns <= figures.MAX_COLUMNS
    assert coarse.overall == pytest.approx(fine.overall, abs=0.5)


def test_a_timeline_without_time_is_not_drawn() -> None:
    assert figures.timeline(None) is None
    assert figures.timeline(Timeline(start_s=[0.0, 0.0], wait_s=[0.0, 0.0], step_s=[0.0, 0.0])) is None


def test_warm_up_is_marked_and_left_out_of_the_share() -> None:
    drawn = figures.timeline(
        Timeline(
            start_s=[0.0, 5.0, 6.0, 7.0], wait_s=[4.0, 0.5, 0.5, 0.5], step_s=[1.0, 0.5, 0.5, 2.5], warmup=[1, 0, 0, 0]
        )
    )
    assert drawn is not None
    assert drawn.warmups == [figures.Bar("warmup", 0.0, 50.0)]
    assert drawn.overall == 30.0
    assert drawn.wait == "M0 100 L0.00 20.0H50.00 L50.00 50.0H60.00 L60.00 50.0H70.00 L70.00 83.3H100.00L100 100Z"


def test_a_page_of_many_ranks_and_batches_stays_small() -> None:
    big = examples.several_ranks(512)
    big = type(big)(
        **{f: getattr(big, f) for f in big.__struct_fields__}
        | {"timeline": examples.timeline(2000), "what_if": examples.what_if()}
    )
    assert len(html.render(big).encode()) < 500_000


@pytest.mark.browser
@browser
def test_a_browser_draws_every_chart_without_a_complaint_or_a_request(tmp_path: Path) -> None:
    place = tmp_path / "report.html"
    place.write_text(html.render(examples.data_bound()))
    with chromium.open_page(place) as page:
        assert page.value("document.documentElement.dataset.ready") == "1"
        assert page.complaints == []
        assert [url for url in page.requests if not url.startswith(("file://", "data:"))] == []
        assert page.value("document.querySelectorAll('.ladder rect.mark').length") == 7
        assert page.value("document.querySelectorAll('figure.curve').length") == 6
        drawn = "[...document.querySelectorAll('svg')].filter(s => s.getBoundingClientRect().width > 50).length"
        assert page.value(drawn) == 8 + 4 + 1 + 1 + 4  # ladder, advice, the curve shown, timeline, stages
        box = "document.querySelector('figure.curve:not([hidden]) path.line').getBoundingClientRect()"
        assert page.value(f"{box}.width") > 300
        assert page.value(f"{box}.height") > 50


@pytest.mark.browser
@browser
def test_the_panel_answers_to_its_controls(tmp_path: Path) -> None:
    place = tmp_path / "report.html"
    place.write_text(html.render(examples.data_bound()))
    shown = "document.querySelector('figure.curve:not([hidden])').dataset.key"
    readout = "document.getElementById('readout').textContent.trim()"
    with chromium.open_page(place) as page:
        assert page.value(shown) == "0,1"
        assert page.value(readout) == "predicted 211 samples/s ±4% measured 214 samples/s ±2% stall share 58.2% ±1.2"
        page.value("s = document.getElementById('workers'); s.value = 5; s.dispatchEvent(new Event('input')); 0")
        assert page.value("document.getElementById('workers-out').textContent") == "6 (advised)"
        assert "against now +136%" in page.value(readout)
        page.value("a = document.querySelectorAll('select')[1]; a.value = 2; a.dispatchEvent(new Event('input')); 0")
        assert page.value(shown) == "0,2"
        assert page.value(readout).startswith("predicted 256 samples/s")
        assert page.complaints == []


@pytest.mark.browser
@browser
def test_the_page_fits_a_phone_and_follows_the_colour_scheme(tmp_path: Path) -> None:
    place = tmp_path / "report.html"
    place.write_text(html.render(examples.data_bound()))
    background = "getComputedStyle(document.body).backgroundColor"
    with chromium.open_page(place) as page:
        page.call("Emulation.setDeviceMetricsOverride", width=360, height=740, deviceScaleFactor=2, mobile=True)
        assert page.value("document.documentElement.scrollWidth") == 360
        for scheme, color in (("light", "rgb(244, 245, 247)"), ("dark", "rgb(15, 18, 22)")):
            page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
            assert page.value(background) == color


@pytest.mark.browser
@browser
def test_hostile_names_run_nothing_in_a_browser(tmp_path: Path) -> None:
    place = tmp_path / "report.html"
    place.write_text(html.render(examples.hostile()))
    with chromium.open_page(place) as page:
        page.call("Emulation.setDeviceMetricsOverride", width=360, height=740, deviceScaleFactor=2, mobile=True)
        assert page.value("document.documentElement.dataset.ready") == "1"
        assert page.complaints == []
        assert page.value("document.querySelectorAll('img, iframe, object').length") == 0
        assert page.value("document.documentElement.scrollWidth") == 360
