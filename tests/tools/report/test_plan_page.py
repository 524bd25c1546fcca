from __future__ import annotations

import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import numpy as np
import pytest

from evenstep.strategy import DGraph, LoadingPlan, SampleTable
from evenstep.strategy.mesh import ClientPlaceTree
from evenstep.tools.report.plan_page import plan_page

VOID = {"meta", "line", "path"}
SPACE = "{http://www.w3.org/2000/svg}"


def plan_of(samples: int = 200, sources: int = 3, **mesh: int) -> LoadingPlan:
    rng = np.random.Generator(np.random.PCG64(0))
    count = np.arange(samples)
    text = np.minimum(rng.lognormal(5, 1, samples).astype(int) + 1, 4000)
    names = (*(f"s{n}" for n in range(sources - 1)), "<b>&co")
    lengths = {"text": text, "image": np.where(count % 2, text // 2, 0)}
    table = SampleTable(
        names, count % sources, count // sources, count * 0, count // sources, lengths
    )
    tree = ClientPlaceTree.of(mesh or {"DP": 4, "TP": 2})
    root = DGraph.of(table, tree, step=12, micro_batches=2, max_tokens=4000)
    main = root.modality("text").distribute("DP").cost(lambda n: n * n).balance("greedy")
    encoder = root.modality("image").distribute("WORLD").balance("karmarkar_karp")
    return main.broadcast_at("TP").plan(subplans={"vision encoder": encoder})


class Reader(HTMLParser):
    """Checks that elements close in order, and keeps what a reader sees."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.words = ""
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        assert not {"src", "href"} & {name for name, _ in attributes}
        if tag not in {"meta", "line"}:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag != "line":
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.words += data


def test_the_page_is_well_formed_and_asks_for_nothing() -> None:
    page = plan_page(plan_of())
    Reader(page)
    assert "<script" not in page
    assert "@import" not in page
    assert "url(" not in page
    assert set(re.findall(r"https?://[^\s\"<]*", page)) <= {"http://www.w3.org/2000/svg"}


def test_the_page_says_what_the_plan_says() -> None:
    plan = plan_of()
    words = Reader(plan_page(plan)).words
    assert len(plan.carried) > 0
    assert all(note in words for note in plan.notes)
    assert "Plan of step 12" in words
    assert f"{plan.imbalance:.3f}{plan.imbalance_before:.3f} before" in words
    sub = plan.subplans["vision encoder"]
    assert f"{sub.imbalance:.3f}{sub.imbalance_before:.3f} before" in words
    assert "4 of 8 clients fetch. The trainer broadcasts at TP." in words
    assert "Subplan vision encoder: image" in words


def test_names_cannot_break_the_page() -> None:
    page = plan_page(plan_of())
    assert "<b>&co" not in page
    assert page.count("&lt;b&gt;&amp;co") > 2


def test_columns_are_as_tall_as_their_costs_and_bands_as_wide_as_their_tokens() -> None:
    plan = plan_of()
    loads, flow, _ = (
        ElementTree.fromstring(drawing)
        for drawing in re.findall(r"<svg.*?</svg>", plan_page(plan), re.DOTALL)
    )
    bars = list(loads.iter(f"{SPACE}rect"))
    assert len(bars) == 2 * plan.buckets * plan.micro_batches
    costs = np.concatenate([plan.cost_before.ravel(), plan.cost_after.ravel()])
    heights = np.array([float(bar.attrib["height"]) for bar in bars]) + 0.6
    assert heights == pytest.approx(costs / costs.max() * heights.max(), abs=0.7)
    bands = list(flow.iter(f"{SPACE}path"))
    assert len(bands) == 3 * plan.buckets
    widths = [float(band.attrib["stroke-width"]) for band in bands]
    tokens = [
        int(re.sub(r".*: (.*) tokens", r"\1", b[0].text or "").replace(",", "")) for b in bands
    ]
    assert sum(tokens) == plan.tokens[plan.assignment.placed].sum()
    assert np.array(widths) / sum(widths) == pytest.approx(np.array(tokens) / sum(tokens), abs=0.01)


def test_a_large_plan_is_shown_in_part_and_the_page_says_so() -> None:
    plan = plan_of(samples=1200, sources=60, DP=300)
    page = plan_page(plan)
    words = Reader(page).words
    assert "And 268 more buckets." in words
    assert "And 28 more sources." in words
    assert "50 other sources" in words
    assert "284 more buckets" in words
    assert "the costliest of 0 to 4" in words
    assert len(page) < 200_000
