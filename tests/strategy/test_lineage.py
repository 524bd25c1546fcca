from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from graph_world import squares, table

from evenstep.errors import ConfigurationError
from evenstep.strategy import (
    STATES,
    DGraph,
    LoadingPlan,
    SampleId,
    rows_of,
    trace,
)
from evenstep.strategy.mesh import ClientPlaceTree


def plan_of(lengths: list[int], max_tokens: int | None = None) -> LoadingPlan:
    tree = ClientPlaceTree.of({"PP": 2, "DP": 2, "TP": 2})
    carried = table([7], first=50)
    graph = DGraph.of(
        table(lengths), tree, step=3, micro_batches=2, max_tokens=max_tokens, carried=carried
    )
    graph = graph.distribute("DP").cost(squares).balance("greedy").broadcast_at("TP")
    return graph.plan()


def test_a_sample_is_traced_from_its_source_to_the_ranks_that_get_it() -> None:
    plan = plan_of([4, 9, 2, 6])
    (row,) = rows_of(plan, SampleId("b", 0, 0)).tolist()
    edges = trace(plan, row)
    assert [edge.kind for edge in edges] == ["transformation", None, "grouping", "transformation"]
    nodes = [edges[0].before, *(edge.after for edge in edges)]
    assert tuple(node.state for node in nodes) == STATES
    assert {node.sample for node in nodes} == {SampleId("b", 0, 0)}
    assert [node.where for node in nodes] == [
        "position 0 of b",
        "sample 2 of step 3",
        "DP bucket 0",
        "micro-batch 0, index 0",
        "ranks 0, 4",
    ]
    assert all(a.after == b.before for a, b in pairwise(edges))


def test_a_carried_sample_gets_as_far_as_drawn_and_one_from_before_says_so() -> None:
    plan = plan_of([9, 9, 9, 9], max_tokens=9)
    (last,) = np.flatnonzero(~plan.assignment.placed).tolist()
    assert [edge.after.state for edge in trace(plan, last)] == ["drawn"]
    assert trace(plan, 0)[0].after.where == "sample 0 of step 3, carried from the step before"


def test_what_the_plan_does_not_have_is_refused() -> None:
    plan = plan_of([4, 9, 2, 6])
    for sample in (SampleId("z", 0, 0), SampleId("a", 1, 0), SampleId("a", 0, 77)):
        with pytest.raises(ConfigurationError, match="is not in the plan of step 3, which has 5"):
            rows_of(plan, sample)
    with pytest.raises(ConfigurationError, match="row 5 must be from 0 to 4"):
        trace(plan, 5)
