"""The paper's algorithms, written out straight from its text, against those made of primitives."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import numpy as np
import pytest
from graph_world import squares, table
from hypothesis import given
from hypothesis import strategies as st

from evenstep.strategy import DGraph, image_balance, llm_balance, vlm_balance
from evenstep.strategy.mesh import ClientPlaceTree

Bins = list[list[int]]
texts = st.lists(st.integers(1, 50), min_size=12, max_size=50)


def greedy_bin_pack(
    samples: list[int], m: int, limit: float, cost: Callable[[int], int], size: Callable[[int], int]
) -> Bins:
    """Each sample, the costliest first, into the cheapest bin that has room for it."""
    bins: Bins = [[] for _ in range(m)]
    for sample in sorted(samples, key=lambda s: -cost(s)):
        open_bins = [b for b in bins if sum(map(size, b)) + size(sample) <= limit]
        min(open_bins, key=lambda b: sum(map(cost, b))).append(sample)
    return bins


def algorithm_1(
    samples: list[int],
    m: int,
    p: int,
    limit: float,
    cost: Callable[[int], int],
    size: Callable[[int], int],
) -> list[Bins]:
    micro_batches = greedy_bin_pack(samples, m, limit, cost, size)
    buckets: list[Bins] = [[] for _ in range(p)]
    micro_batches.sort(key=lambda batch: -sum(map(cost, batch)))
    for i in range(m):
        buckets[i % p].append(micro_batches[i])
    return buckets


def planned(plan) -> list[Bins]:
    return [
        [plan.assignment.members(b, k).tolist() for k in range(plan.micro_batches)]
        for b in range(plan.buckets)
    ]


@given(texts, st.sampled_from([(1, 4), (2, 3), (4, 2), (3, 1)]), st.booleans())
def test_llm_balance_is_algorithm_1(
    lengths: list[int], shape: tuple[int, int], limited: bool
) -> None:
    p, each = shape
    # Enough that greedy bin packing finds room for every sample.
    limit = sum(lengths) // (p * each) + 50 if limited else None
    tree = ClientPlaceTree.of({"DP": p, "TP": 2})
    graph = DGraph.of(table(lengths), tree, micro_batches=each, max_tokens=limit)
    plan = llm_balance(graph, squares)
    expected = algorithm_1(
        list(range(len(lengths))),
        p * each,
        p,
        float("inf") if limit is None else limit,
        lambda s: lengths[s] ** 2,
        lambda s: lengths[s],
    )
    assert planned(plan) == expected
    assert not len(plan.carried)


@given(texts, st.data())
def test_vlm_balance_is_algorithm_2(lengths: list[int], data: st.DataObject) -> None:
    some = st.integers(0, 30)
    images = data.draw(st.lists(some, min_size=len(lengths), max_size=len(lengths)))
    tree = ClientPlaceTree.of({"PP": 2, "DP": 2, "TP": 2})
    graph = DGraph.of(table(lengths, images), tree, micro_batches=3)
    plan = vlm_balance(graph, squares, lambda patches: 3 * patches)

    with_image = [row for row, image in enumerate(images) if image]
    encoder = greedy_bin_pack(
        with_image, 8, float("inf"), lambda s: 3 * images[s], lambda s: images[s]
    )
    assert planned(plan.subplans["encoder"]) == [[batch] for batch in encoder]
    together = [text + image for text, image in zip(lengths, images)]
    backbone = algorithm_1(
        list(range(len(lengths))),
        6,
        2,
        float("inf"),
        lambda s: together[s] ** 2,
        lambda s: together[s],
    )
    assert planned(plan) == backbone


@given(st.lists(st.integers(1, 60), max_size=40), st.integers(1, 9))
def test_image_balance_is_algorithm_2_s_plan_of_single_images(
    patches: list[int], clients: int
) -> None:
    expected = greedy_bin_pack(
        list(range(len(patches))),
        clients,
        float("inf"),
        lambda i: patches[i] ** 2,
        lambda i: patches[i],
    )
    found = image_balance(np.array(patches, np.int64), clients, squares)
    assert [np.flatnonzero(found == c).tolist() for c in range(clients)] == [
        sorted(each) for each in expected
    ]


@pytest.mark.parametrize(("strategy", "most"), [(llm_balance, 7), (vlm_balance, 12)])
def test_strategies_take_no_more_lines_than_the_paper_says(strategy, most: int) -> None:
    source = inspect.getsource(strategy)
    body = source.split('"""')[2].strip().splitlines()
    assert 1 < len(body) <= most
