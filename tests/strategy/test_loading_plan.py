from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest
from graph_world import table

from evenstep.errors import ConfigurationError
from evenstep.strategy import DGraph
from evenstep.strategy.assignment import Assignment
from evenstep.strategy.mesh import ClientPlaceTree


def test_members_are_in_order_and_bounds_are_checked() -> None:
    none = -1
    assignment = Assignment.of(
        [1, 0, none, 1, 1], [0, 1, none, 1, 0], [1, 0, none, 0, 0], buckets=2, micro_batches=2
    )
    assert assignment.members(1, 0).tolist() == [4, 0]
    assert assignment.members(0, 0).tolist() == []
    assert assignment.rows.tolist() == [1, 4, 0, 3]
    assert assignment.sums(np.array([1, 2, 4, 8, 16])).tolist() == [[0, 2], [17, 8]]
    for wrong in ((2, 0), (0, 2), (-1, 0)):
        with pytest.raises(ConfigurationError, match="must be from 0 to 1"):
            assignment.members(*wrong)


def test_imbalance_of_nothing_to_do_is_one() -> None:
    tree = ClientPlaceTree.of({"DP": 2})
    plan = DGraph.of(table([1, 2]), tree).distribute("DP").plan()
    plan = replace(plan, costs=np.zeros(2, np.int64))
    assert plan.imbalance == plan.imbalance_before == 1.0


def test_a_plan_travels_without_what_was_worked_out_from_it() -> None:
    plan = (
        DGraph.of(table([3, 1, 2, 9] * 50), ClientPlaceTree.of({"DP": 2})).distribute("DP").plan()
    )
    before = len(pickle.dumps(plan))
    _ = plan.tokens, plan.cost_before, plan.assignment.rows, plan.delivery
    data = pickle.dumps(plan)
    assert len(data) <= before
    assert np.array_equal(pickle.loads(data).cost_before, plan.cost_before)
