"""Markdown: the whole text of a short report, and names that cannot become markup."""

from __future__ import annotations

import pytest
import report_examples as examples
from markdown_it import MarkdownIt

from ioprobe.report import markdown

UNDECIDED = """\
### ioprobe: undecided, the measurement cannot carry a verdict

Waits for data 16.0% ±15 of the time; headroom +19% (-5% to +70%). The stall share lies between 1% and 31%: six \
batches are too few.

**Unexplained:** The loop is 13% slower than loader and step explain; likely: step and workers share cores.

| stage alone, samples/s | rate | 95% | measured how |
| --- | ---: | --- | --- |
| loader | 300 | ±40% |  |
| step | 310 | ±2% |  |
| loop | 260 | ±30% |  |

**Read with care**

- 6 batches after warm-up. Settle it: `ioprobe analyze ... --seconds 120`

`ioprobe analyze 'data/train-{000..007}.tar' --step-ms 20` · `num_workers=2 prefetch_factor=2 batch_size=32` · node07, \
8 of 64 cores usable, NVIDIA H100 80GB HBM3 · run file `ioprobe-runs/analyze-20261128-010203/run.json` · ioprobe \
0.1.0, 2026-11-28T01:02:03Z
"""


def test_the_text_is_exactly_this() -> None:
    assert markdown.render(examples.undecided()) == UNDECIDED


@pytest.mark.parametrize("name", examples.ALL)
def test_every_table_row_has_as_many_cells_as_its_head(name: str) -> None:
    tokens = MarkdownIt("gfm-like", {"linkify": False}).parse(markdown.render(examples.ALL[name]()))
    width, cells = 0, 0
    for token in tokens:
        if token.type == "th_open":
            width += 1
        elif token.type == "thead_open":
            width = 0
        elif token.type == "tr_open":
            cells = 0
        elif token.type == "td_open":
            cells += 1
        elif token.type == "tr_close" and cells:
            assert cells == width


def test_hostile_names_make_no_html_no_link_and_no_mention() -> None:
    text = markdown.render(examples.hostile())
    shown = MarkdownIt("gfm-like", {"linkify": False}).render(text)
    assert "<img" not in shown
    assert "</script>" not in shown
    assert "\x1b" not in shown
    outside_code = "".join(part.partition("</code>")[2] for part in ("</code>" + shown).split("<code>"))
    # GitHub looks for mentions in what it reads, and an entity is none.
    assert "@all" not in markdown.prose(examples.HOSTILE)
    assert "{{ 7*7 }}" in outside_code


def test_a_missed_prediction_is_bold() -> None:
    assert "**MISSED: verified +21% ±6, less than predicted**" in markdown.render(examples.data_bound())
