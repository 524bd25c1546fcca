"""`DGraph.memory`: a second limit of a micro-batch, beside its tokens."""

from __future__ import annotations

import numpy as np
import pytest
from graph_world import squares, table
from hypothesis import example, given
from hypothesis import strategies as st

from evenstep.errors import ConfigurationError, SampleError
from evenstep.strategy import DGraph
from evenstep.strategy.mesh import ClientPlaceTree

TREE = ClientPlaceTree.of({"DP": 3})


@given(
    st.lists(st.integers(1, 40), min_size=6, max_size=60),
    st.sampled_from([None, 50, 80]),
    st.sampled_from([1600, 2000, 4000]),
    st.sampled_from(["greedy", "karmarkar_karp", None]),
)
@example([40] * 6, None, 1600, None)  # each as large as the limit
def test_no_micro_batch_exceeds_either_limit_and_the_rest_is_carried(
    lengths: list[int], max_tokens: int | None, limit: int, method: str | None
) -> None:
    graph = DGraph.of(table(lengths), TREE, micro_batches=2, max_tokens=max_tokens)
    graph = graph.distribute("DP").memory(squares, limit)
    plan = (graph.balance(method) if method else graph).plan()
    tokens = np.array(lengths)
    for bucket in range(plan.buckets):
        for number in range(plan.micro_batches):
            own = tokens[plan.assignment.members(bucket, number)]
            assert (own**2).sum() <= limit
            assert max_tokens is None or own.sum() <= max_tokens
    placed = int(plan.assignment.placed.sum())
    assert placed + len(plan.carried) == len(lengths)
    if len(plan.carried):
        assert f"{limit:,} of memory" in plan.notes[-1]


def test_a_sample_over_the_limit_is_named() -> None:
    graph = DGraph.of(table([5, 6, 40]), TREE).distribute("DP").memory(squares, 1000)
    with pytest.raises(SampleError, match=r"sample c\[0\]\[0\] takes 1\.60 times the memory"):
        graph.plan()


@pytest.mark.parametrize("limit", [0, -1.0, float("nan")])
def test_a_limit_must_be_positive(limit: float) -> None:
    with pytest.raises(ConfigurationError, match="of memory must be positive"):
        DGraph.of(table([1]), TREE).memory(squares, limit)
