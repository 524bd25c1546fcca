from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest
from graph_world import meshes, squares, table
from hypothesis import given
from hypothesis import strategies as st

from evenstep.errors import ConfigurationError
from evenstep.strategy import DGraph, from_json, to_json
from evenstep.strategy.assignment import Assignment
from evenstep.strategy.mesh import ClientPlaceTree

texts = st.lists(st.integers(1, 40), min_size=27, max_size=60)


@given(texts, meshes(), st.booleans(), st.sampled_from(["greedy", "zigzag"]))
def test_json_is_exact_subplans_and_floats_included(
    lengths: list[int], tree: ClientPlaceTree, whole: bool, method: str
) -> None:
    images = [length % 3 * 7 for length in lengths]
    root = DGraph.of(table(lengths, images), tree, step=5, micro_batches=2, max_tokens=45)
    cost = squares if whole else lambda n: n**1.37 / 3
    encoder = root.modality("image").distribute("WORLD").cost(np.sqrt).balance(method)
    main = root.modality("text").distribute("DP").cost(cost).balance(method)
    plan = main.broadcast_at("TP", "CP").plan(subplans={"encoder": encoder})
    text = to_json(plan)
    back = from_json(text)
    assert to_json(back) == text
    assert back.samples == plan.samples
    assert back.tree == plan.tree
    assert back.costs.dtype == plan.costs.dtype
    assert back.cost_after.tolist() == plan.cost_after.tolist()
    assert back.cost_before.tolist() == plan.cost_before.tolist()
    assert back.delivery.fetched_by.tolist() == plan.delivery.fetched_by.tolist()
    assert (back.notes, back.methods, back.carried) == (plan.notes, plan.methods, plan.carried)
    (sub,) = back.subplans.values()
    assert sub.samples is back.samples
    assert sub.costs.tolist() == plan.subplans["encoder"].costs.tolist()
    assert sub.stages == "all"


def test_a_damaged_or_foreign_plan_is_refused() -> None:
    plan = DGraph.of(table([1, 2, 3]), ClientPlaceTree.of({"DP": 2})).distribute("DP").plan()
    text = to_json(plan)
    with pytest.raises(ConfigurationError, match="a plan of version 2 cannot be read"):
        from_json(text.replace('"version":1', '"version":2', 1))
    with pytest.raises(ConfigurationError, match="a plan of version None"):
        from_json("[]")
    assert '"bucket":[0,0,1]' in text
    with pytest.raises(ConfigurationError, match=r"damaged: .*bucket is \[0, 0\], which"):
        from_json(
            text.replace('"bucket":[0,0,1]', '"bucket":[0,0]')
            .replace('"micro_batch":[0,0,0]', '"micro_batch":[0,0]')
            .replace('"order":[0,1,0]', '"order":[0,1]')
        )
    with pytest.raises(ConfigurationError, match="bucket=2 of sample 2 must be from 0 to 1"):
        from_json(text.replace('"bucket":[0,0,1]', '"bucket":[0,0,2]'))


def test_members_are_in_order_and_bounds_are_checked() -> None:
    none = -1
    assignment = Assignment.of(
        [1, 0, none, 1, 1], [0, 1, none, 1, 0], [1, 0, none, 0, 0], buckets=2, micro_batches=2
    )
    assignment.check()
    assert assignment.members(1, 0).tolist() == [4, 0]
    assert assignment.members(0, 0).tolist() == []
    assert assignment.rows.tolist() == [1, 4, 0, 3]
    assert assignment.sums(np.array([1, 2, 4, 8, 16])).tolist() == [[0, 2], [17, 8]]
    for wrong in ((2, 0), (0, 2), (-1, 0)):
        with pytest.raises(ConfigurationError, match="must be from 0 to 1"):
            assignment.members(*wrong)


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        (([0, 0], [0, 0], [0, 0]), "order=0 of sample 1 in bucket 0, micro-batch 0: it must"),
        (([0, 0], [0, 0], [0, 2]), "order=2 of sample 1"),
        (([0, 1], [0, 0], [0, 0]), "bucket=1 of sample 1 must be from 0 to 0"),
        (([0, -1], [0, 0], [0, 0]), "micro_batch=0 of sample 1 must be from 0 to 0, or -1 in all"),
        (([0, 0], [0, -1], [0, 0]), "micro_batch=-1 of sample 1"),
    ],
)
def test_places_taken_twice_or_left_empty_are_found(columns: tuple, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        Assignment.of(*columns, buckets=1, micro_batches=1).check()


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
