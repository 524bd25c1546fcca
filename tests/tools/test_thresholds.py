"""Where the classes of outliers of Algorithm 1 begin."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.papers.wlb.thresholds import (
    auto_thresholds,
)
from evenstep.errors import ConfigurationError
from evenstep.plan.packing.step_limits import DocumentCost
from evenstep.tools.simulate import sample_lengths

K = 1024


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


def test_thresholds_of_no_documents_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="got none"):
        auto_thresholds(np.empty(0, np.int64), context=10, queues=1)
