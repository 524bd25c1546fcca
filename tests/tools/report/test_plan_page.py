from __future__ import annotations

import numpy as np
import pytest
from reader import Reader

from evenstep.strategy import DGraph, LoadingPlan, SampleTable
from evenstep.strategy.mesh import ClientPlaceTree
from evenstep.tools.report.plan_page import plan_page


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
    assert page.count("&lt;b&gt;&amp;co") == 2


def test_columns_are_as_tall_as_their_costs_and_flows_have_all_tokens() -> None:
    plan = plan_of()
    page = Reader(plan_page(plan))
    costs = np.concatenate([plan.cost_before.ravel(), plan.cost_after.ravel()])
    heights = page.heights[: len(costs)]
    tallest = max(plan.cost_before.sum(axis=1).max(), plan.cost_after.sum(axis=1).max())
    assert heights == pytest.approx(costs / tallest, abs=1e-4)
    placed = plan.assignment.placed
    for source in range(3):
        tokens = plan.tokens[placed & (plan.samples.source == source)]
        (flow, *_) = (row[1:] for row in page.rows if row[:1] == [plan.samples.sources[source]])
        assert sum(int(cell.replace(",", "")) for cell in flow) == tokens.sum()


def test_a_large_plan_is_shown_in_part_and_the_page_says_so() -> None:
    plan = plan_of(samples=1200, sources=60, DP=300)
    page = plan_page(plan)
    words = Reader(page).words
    assert "And 268 more buckets." in words
    assert "And 28 more sources." in words
    assert "50 other sources" in words
    assert "284 more buckets" in words
    assert "the costliest of 0 to 4" in page
    assert len(page) < 200_000
