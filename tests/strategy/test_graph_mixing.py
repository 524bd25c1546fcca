"""Graphs draw from the mixtures of `evenstep.mixture`; and the code of docs/service.md runs."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from evenstep.errors import ConfigurationError
from evenstep.mixture import Constant, Mixer
from evenstep.strategy import BufferedMetadata, DGraph, SampleTable
from evenstep.strategy.mesh import ClientPlaceTree
from page_code import run_page

SOURCES = ("web", "code", "math")
COUNT = np.arange(3000)
BUFFERED = BufferedMetadata(
    SampleTable(
        SOURCES, COUNT % 3, COUNT // 3, COUNT * 0, COUNT // 3, {"text": COUNT * 7919 % 90 + 1}
    )
)
TREE = ClientPlaceTree.of({"DP": 4, "TP": 2})


def mixture(**weights: float) -> Mixer:
    return Mixer(SOURCES, Constant(weights), samples_per_step=64, seed=5)


def test_steps_drawn_by_a_mixture_follow_its_weights_and_are_planned_whole() -> None:
    mixing, carried = mixture(web=0.5, code=0.25, math=0.25), None
    delivered: list[tuple[int, int]] = []
    for step in range(12):
        graph = DGraph.of(
            BUFFERED, TREE, step=step, micro_batches=2, max_tokens=400, carried=carried
        )
        plan = graph.mix(mixing).distribute("DP").balance("greedy").plan()
        assert plan.weights == {"web": 0.5, "code": 0.25, "math": 0.25}
        placed = plan.samples[plan.assignment.placed]
        delivered += zip(placed.source.tolist(), placed.position.tolist())
        carried = plan.carried
    delivered += zip(carried.source.tolist(), carried.position.tolist())
    counts = Counter(source for source, _ in delivered)
    assert sum(counts.values()) == 12 * 64
    assert abs(counts[0] - 384) <= 12
    for source, count in counts.items():
        assert sorted(p for s, p in delivered if s == source) == list(range(count))


def test_a_strategy_may_name_weights_alone_where_the_job_has_a_mixture() -> None:
    samples = {}
    for name, schedule in {
        "mapping": {"math": 1.0},
        "schedule": Constant({"math": 1.0}),
        "function": lambda step: {"math": 1.0},
        "own": None,
    }.items():
        root = DGraph.of(BUFFERED, TREE, mixture=mixture(web=1.0))
        graph = root.mix() if name == "own" else root.mix(schedule)
        samples[name] = graph.samples
    assert {SOURCES[s] for s in samples["own"].source} == {"web"}
    assert {SOURCES[s] for s in samples["mapping"].source} == {"math"}
    assert samples["mapping"] == samples["schedule"] == samples["function"]


def test_two_graphs_that_name_the_same_weights_share_one_draw_and_others_are_refused() -> None:
    root = DGraph.of(BUFFERED, TREE, mixture=mixture(web=1.0))
    first, second = root.mix({"code": 1.0}), root.modality("text").mix({"code": 1.0})
    assert first.samples is second.samples
    with pytest.raises(ConfigurationError, match="has drawn step 0 by other weights"):
        root.mix({"math": 1.0})


def test_the_strategies_of_the_page_balance_text_and_images() -> None:
    rng = np.random.Generator(np.random.PCG64(0))
    count = np.arange(800)
    text = np.minimum(rng.lognormal(5.5, 1.2, 800).astype(int) + 1, 4000)
    lengths = {"text": text, "image": np.where(count % 3, rng.integers(64, 1024, 800), 0)}
    samples = SampleTable(("web", "code"), count % 2, count // 2, count * 0, count // 2, lengths)

    def world() -> dict[str, Any]:
        weights = {"web": 0.7, "code": 0.3}
        mixture = Mixer(("web", "code"), weights, samples_per_step=120, seed=0)
        return {"metadata": BufferedMetadata(samples), "mixture": mixture}

    names = run_page("service.md", "A strategy for text", **world())
    plan = names["plan"]
    assert (plan.buckets, plan.micro_batches, len(plan)) == (4, 4, 120)
    assert plan.imbalance < 1.02 < plan.imbalance_before
    assert plan.delivery.fetching.tolist() == [rank for rank in range(32) if rank % 2 == 0]
    names["mixture"] = world()["mixture"]
    names = run_page("service.md", "A strategy for images and text", **names)
    plan, encoder = names["plan"], names["encoder"]
    assert plan.modality == ("text", "image")
    assert plan.imbalance < 1.02 < plan.imbalance_before
    assert encoder.buckets == 32
    assert encoder.imbalance < encoder.imbalance_before
