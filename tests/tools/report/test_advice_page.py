from __future__ import annotations

import re
from html.parser import HTMLParser
from xml.etree import ElementTree

from sample_advice import NAME, made

from evenstep.tools.advise.predict import LEFT_OUT
from evenstep.tools.report.advice_page import advice_page

VOID = {"meta", "line", "rect", "path", "polyline"}


class Reader(HTMLParser):
    """Checks that elements close in order, and keeps what a reader sees and what is referred to."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        if tag not in VOID or tag == "rect":
            self.open.append(tag)
        self.links += [value or "" for name, value in attributes if name in ("src", "href")]

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.links += [value or "" for name, value in attributes if name in ("src", "href")]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.seen.append(data)


def read(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    reader.close()
    assert reader.open == []
    return reader


def test_the_page_is_well_formed_and_asks_for_nothing() -> None:
    page = advice_page(made())
    reader = read(page)
    assert reader.links == []
    assert "<script" not in page
    assert "@import" not in page
    assert "url(" not in page
    assert set(re.findall(r"https?://[^\s\"<]*", page)) <= {"http://www.w3.org/2000/svg"}
    assert "prefers-color-scheme: dark" in page


def test_the_page_has_the_figures_of_the_text() -> None:
    advice = made()
    seen = " ".join("".join(read(advice_page(advice)).seen).split())
    assert NAME in seen
    assert " ".join(advice.recommendation.code.split()) in seen
    assert all(clause in seen for clause in LEFT_OUT)
    assert all(note in seen for note in advice.notes)
    assert all(reason in seen for reason in advice.setup.reasons)
    assert "not predicted: needs <numba>" in seen
    assert f"{advice.prediction('even').figures['efficiency'].value:.1%}" in seen
    assert f"composition{advice.prediction('even').figures['composition'].value:.2f}" in seen
    assert advice.learning_rate.text in seen


def test_names_cannot_break_the_page() -> None:
    assert NAME not in advice_page(made())
    assert "chat&lt;&amp;&gt;.parquet" in advice_page(made())


def test_plots_are_svg_with_a_bar_for_each_policy_that_runs() -> None:
    plots = re.findall(r"<svg.*?</svg>", advice_page(made()), re.DOTALL)
    lengths, policies = (ElementTree.fromstring(plot) for plot in plots)
    space = "{http://www.w3.org/2000/svg}"
    words = [text.text or "" for text in lengths.iter(f"{space}text")]
    budget = made().setup.max_tokens
    assert f"max_tokens = {budget:,}" in words
    assert f"max_tokens / 4 = {budget / 4:,.0f}" in words
    bars = list(policies.iter(f"{space}rect"))
    assert len(bars) == 2
    efficiencies = [
        made().prediction(name).figures["efficiency"] for name in ("even", "fixed-batch")
    ]
    widths = [float(bar.attrib["width"]) for bar in bars]
    assert abs(widths[0] / widths[1] - efficiencies[0].value / efficiencies[1].value) < 0.01
    assert len(list(policies.iter(f"{space}path"))) == 2


def test_whiskers_are_drawn_only_where_samples_were_drawn() -> None:
    assert 'class="whisker"' in advice_page(made())
    assert 'class="whisker"' not in advice_page(made(whole=True))
    assert "Whiskers" not in advice_page(made(whole=True))
