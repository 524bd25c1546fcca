"""Subplans that deal images one by one, from numbers alone."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.planning import single_images
from evenstep.errors import ConfigurationError, SampleError
from evenstep.mixture.sample_table import units_of
from evenstep.strategy import DGraph, LoaderTask, LoadingPlan, SampleTable, to_json
from evenstep.strategy.mesh import ClientPlaceTree

TREE = ClientPlaceTree.of({"DP": 2})
SAMPLES = [(8, 4, 4), (), (6,), (3, 1)]


def table(images: Sequence[Sequence[int] | None], texts: Sequence[int] = ()) -> SampleTable:
    count = len(images)
    lengths = [5 if each is None else sum(each) for each in images]
    return SampleTable(
        sources=("a",),
        source=np.zeros(count),
        position=np.arange(count),
        shard=np.zeros(count),
        index=10 + np.arange(count),
        lengths={"text": np.array(texts or [1] * count), "image": np.array(lengths)},
        units={"image": units_of(images)},
    )


def planned(samples: SampleTable, tree: ClientPlaceTree = TREE, **options: int) -> LoadingPlan:
    root = DGraph.of(samples, tree, **options)
    encoder = root.modality("image").one_by_one().distribute("WORLD").balance("greedy")
    return root.modality("text").distribute("DP").plan(subplans={"encoder": encoder})


def test_images_of_a_sample_part_where_that_is_more_even() -> None:
    encoder = planned(table(SAMPLES)).subplans["encoder"]
    assert encoder.sample_rows.tolist() == [0, 0, 0, 2, 3, 3]
    assert encoder.samples.index.tolist() == [10, 10, 10, 12, 13, 13]
    assert encoder.samples.lengths == {"image": pytest.approx([8, 4, 4, 6, 3, 1])}
    assert encoder.cost_after.ravel().tolist() == [13, 13]
    assert encoder.imbalance == 1.0
    assert [encoder.members(b, 0).lengths["image"].tolist() for b in range(2)] == [
        [8, 4, 1],
        [6, 4, 3],
    ]


def test_costs_and_limits_are_of_each_image() -> None:
    root = DGraph.of(table(SAMPLES), TREE)
    encoder = root.modality("image").one_by_one().distribute("WORLD").cost(lambda n: n * n)
    text = root.modality("text").distribute("DP")
    made = text.plan(subplans={"e": encoder.balance(max_tokens=14)}).subplans["e"]
    assert made.costs.tolist() == [64, 16, 16, 36, 9, 1]
    with pytest.raises(SampleError, match=r"sample a\[0\]\[10\] has 8 tokens of image, over"):
        text.plan(subplans={"e": encoder.balance(max_tokens=7)})


def test_images_of_carried_samples_wait_with_them() -> None:
    plan = planned(table(SAMPLES, [50, 50, 50, 20]), max_tokens=60)
    assert plan.carried.position.tolist() == [2, 3]
    encoder = plan.subplans["encoder"]
    assert encoder.assignment.placed.tolist() == [True] * 3 + [False] * 3
    carried = planned(table([(9,)], [30])[[0]], carried=plan.carried, max_tokens=60)
    assert carried.subplans["encoder"].sample_rows.tolist() == [0, 1, 1, 2]
    assert carried.subplans["encoder"].carried_in == 0


@given(st.lists(st.lists(st.integers(1, 9), max_size=5), min_size=2, max_size=12))
def test_a_plan_travels_and_its_loaders_get_each_image_once(images: list[list[int]]) -> None:
    samples = table(images)
    assert (
        SampleTable.from_dict(samples.to_dict()) == pickle.loads(pickle.dumps(samples)) == samples
    )
    plan = planned(samples)
    copy = pickle.loads(pickle.dumps(plan))
    assert to_json(copy) == to_json(plan)
    theirs, ours = copy.subplans["encoder"], plan.subplans["encoder"]
    assert theirs.sample_rows.tolist() == ours.sample_rows.tolist()
    assert theirs.samples == ours.samples
    order = np.arange(len(images))[::-1]
    half = len(images) // 2
    found = []
    for rows in (order[:half], order[half:]):
        part = LoaderTask.of(plan, rows).parts["encoder"]
        sizes = [images[rows[row]][image] for row, image in zip(part.row, part.image)]
        assert sizes == ours.samples.lengths["image"][part.planned].tolist()
        assert part.bucket.tolist() == ours.assignment.bucket[part.planned].tolist()
        found += part.planned.tolist()
    assert sorted(found) == list(range(sum(map(len, images))))


def test_what_cannot_be_dealt_one_by_one_is_refused() -> None:
    root = DGraph.of(table([(1, 2), None]), TREE)
    text = root.modality("text").distribute("DP")
    single = root.modality("image").one_by_one().distribute("WORLD")
    both = root.modality("text", "image").one_by_one().distribute("WORLD")
    for graph, subplans, words in (
        (text, {"e": single}, r"image of sample a\[0\]\[11\] was measured as one length, 5; let"),
        (text, {"e": both}, r"subplan 'e' deals text\+image one by one; name one modality"),
        (text.one_by_one(), {}, "one_by_one is for subplans"),
    ):
        with pytest.raises((ConfigurationError, SampleError), match=words):
            graph.plan(subplans=subplans)
    saved = table([(1, 2), (3,)]).to_dict()
    with pytest.raises(ValueError, match=r"units\.image"):
        SampleTable.from_dict({**saved, "units": {"image": [[1, 1], [3]]}})


DATA = [each / "shared" / "data" for each in Path(__file__).parents]
REAL = next((each for each in DATA if (each / single_images.PAGES).exists()), None)


@pytest.mark.skipif(REAL is None, reason=f"no folder shared/data with {single_images.PAGES}")
@pytest.mark.parametrize("ranks", [8, 64, 512])
def test_encoders_of_real_images_are_within_5_percent_of_even(ranks: int) -> None:
    pytest.importorskip("pyarrow")
    assert REAL is not None
    documents = single_images.Documents(REAL)
    for name, cost in single_images.COSTS.items():
        samples = documents.step(16 * ranks, 1)
        (whole, single, _), _, plan = single_images.planned(samples, ranks, cost)
        assert single <= 1.001 < 1.2 < whole, name
        assert (np.bincount(plan.subplans["encoder"].assignment.bucket, minlength=ranks) > 0).all()
