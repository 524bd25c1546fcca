"""Queues without a queue: classes, heads, which class is released, and where classes begin."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenstep.errors import ConfigurationError
from evenstep.plan.packing.document_cost import DocumentCost
from evenstep.plan.packing.options import PackingOptions
from evenstep.plan.packing.outliers import (
    auto_thresholds,
    class_to_release,
    length_classes,
    max_cost_ratio,
    most_similar,
    queue_heads,
)
from evenstep.tools.simulate import sample_lengths

K = 1024


def test_a_class_begins_with_its_threshold_and_the_last_has_no_end() -> None:
    found = length_classes(np.array([9, 10, 19, 20, 10**6]), (10, 20))
    assert found.tolist() == [0, 1, 1, 2, 2]
    assert length_classes(np.array([9, 10]), ()).tolist() == [0, 0]


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9)), max_size=30))
def test_heads_are_the_first_of_each_queue(documents: list[tuple[int, int]]) -> None:
    classes = np.array([k for k, _ in documents], np.int64)
    ages = np.array([a for _, a in documents], np.int64)
    waiting, heads = queue_heads(classes, ages, 3)
    for queue in (1, 2, 3):
        mine = [age for kind, age in documents if kind == queue]
        assert waiting[queue - 1] == len(mine)
        assert heads[queue - 1] == (mine[0] if mine else -1)


def test_of_the_queues_that_are_long_enough_the_one_with_the_oldest_head_is_released() -> None:
    assert class_to_release(np.array([4, 4, 3]), np.array([2, 5, 9]), 4) == 2
    assert class_to_release(np.array([4, 4, 4]), np.array([5, 5, 1]), 4) == 2
    assert class_to_release(np.array([3, 3]), np.array([5, 5]), 4) == 0


def test_ranks_release_a_class_only_when_all_have_enough_of_it() -> None:
    waiting = np.array([[4, 6], [3, 5]])
    assert class_to_release(waiting, np.array([[9, 0], [9, 1]]), 4) == 2
    assert class_to_release(waiting, np.array([[9, 0], [9, 1]]), 6) == 0


@settings(max_examples=50)
@given(st.lists(st.integers(1, 1000), min_size=1, max_size=12), st.integers(1, 6), st.data())
def test_the_most_similar_documents_are_the_closest_run_around_one(
    values: list[int], count: int, data: st.DataObject
) -> None:
    anchor = data.draw(st.integers(0, len(values) - 1))
    found = most_similar(np.array(values), anchor, count).tolist()
    assert anchor in found
    assert len(set(found)) == len(found) == min(count, len(values))
    ascending = sorted(values)
    runs = [ascending[i : i + len(found)] for i in range(len(values) - len(found) + 1)]
    least = min(r[-1] - r[0] for r in runs if values[anchor] in r)
    costs = [values[p] for p in found]
    assert max(costs) - min(costs) == least


def test_outliers_planned_together_differ_by_most_of_the_width_of_a_class_at_most() -> None:
    cost = DocumentCost(linear=0)
    options = PackingOptions(context=80, micro_batches=4, thresholds=(20, 40), cost=cost)
    # Both classes go up to twice the length, so to four times the cost.
    assert max_cost_ratio(1, options) == max_cost_ratio(2, options) == pytest.approx(4**0.7)
    beyond = PackingOptions(context=80, micro_batches=4, thresholds=(90,), cost=cost)
    assert max_cost_ratio(1, beyond) == 1


def test_for_pretraining_lengths_classes_begin_where_exhaustive_search_put_them() -> None:
    lengths = sample_lengths("pretrain-128k", 50_000)
    found = auto_thresholds(lengths, context=128 * K, queues=3)
    assert [round(t / K) for t in found] == [48, 67, 93]
    assert auto_thresholds(lengths, context=128 * K, queues=1) == found[:1]


@settings(max_examples=50)
@given(st.lists(st.integers(1, 300), min_size=1, max_size=60), st.integers(1, 4))
def test_the_first_threshold_is_the_largest_that_solves_its_equation(
    values: list[int], queues: int
) -> None:
    document_cost, lengths = DocumentCost(linear=20), np.array(values)
    found = auto_thresholds(lengths, context=120, queues=queues, cost=document_cost)
    costs = document_cost.of_documents(lengths)
    # A threshold up to 301 is above all documents, so one more stands for all beyond.
    at = np.arange(1, 302)
    mean = 120 * (costs * (lengths < at[:, None])).sum(axis=1) / lengths.sum()
    too_long = document_cost.of_documents(at) > mean
    solves = too_long & (document_cost.of_documents(at - 1) <= mean)
    largest = int(at[solves].max(initial=0)) if too_long[-1] else 302
    if largest <= min(values):
        largest = 60  # half the context, where long documents are most of the cost
    # One above all documents, or below all, sorts nothing.
    assert list(found[:1]) == ([largest] if min(values) < largest <= max(values) else [])
    assert len(found) <= queues
    assert list(found) == sorted(set(found))


def test_equal_documents_have_no_outliers() -> None:
    assert auto_thresholds(np.full(100, 50), context=2000, queues=2) == ()


def test_thresholds_of_no_documents_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="got none"):
        auto_thresholds(np.empty(0, np.int64), context=10, queues=1)
