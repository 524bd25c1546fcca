from __future__ import annotations

import numpy as np
import pytest
from graph_world import squares, table
from hypothesis import given
from hypothesis import strategies as st

from evenstep.errors import ConfigurationError
from evenstep.mixture.sample_table import SampleTable
from evenstep.strategy import (
    DGraph,
    LoadingPlan,
    constructor_do_plan,
    loader_do_plan,
    plan_raw,
    summary_buffer,
    to_json,
)
from evenstep.strategy.mesh import ClientPlaceTree

TREE = ClientPlaceTree.of({"PP": 1, "DP": 2, "CP": 2, "TP": 2})
texts = st.lists(st.integers(1, 30), min_size=4, max_size=40)


def planned(lengths: list[int], max_tokens: int | None = 60) -> LoadingPlan:
    images = [length % 2 * 5 for length in lengths]
    root = DGraph.of(table(lengths, images), TREE, micro_batches=2, max_tokens=max_tokens)
    encoder = root.modality("image").distribute("WORLD").balance()
    main = root.modality("text").distribute("DP").cost(squares).balance().broadcast_at("TP")
    return main.plan(subplans={"encoder": encoder})


@given(texts)
def test_what_loaders_stage_is_what_constructors_take(lengths: list[int]) -> None:
    plan = planned(lengths)
    staged: dict[int, set[int]] = {}
    kept = set()
    for owned in (["a", "c"], ["b"]):
        work = loader_do_plan(plan, owned)
        assert {plan.samples.sources[s] for s in work.samples.source} <= set(owned)
        order = list(zip(work.samples.source.tolist(), work.samples.position.tolist()))
        assert order == sorted(order)
        for row, bucket in zip(work.rows.tolist(), work.bucket.tolist()):
            (kept if bucket < 0 else staged.setdefault(bucket, set())).add(row)
        encoder = plan.subplans["encoder"].assignment
        assert work.subplans["encoder"].tolist() == encoder.bucket[work.rows].tolist()
    assert kept == set(np.flatnonzero(~plan.assignment.placed).tolist())
    for bucket in range(plan.buckets):
        made = constructor_do_plan(plan, bucket)
        assert len(made.micro_batches) == plan.micro_batches
        assert set(np.concatenate(made.micro_batches).tolist()) == staged[bucket]
        for k, (rows, samples) in enumerate(zip(made.micro_batches, made.samples)):
            assert samples == plan.samples[rows] == plan.members(bucket, k)
        present = np.unique(plan.samples.source[sorted(staged[bucket])])
        assert made.sources == tuple(plan.samples.sources[n] for n in present)
        assert made.fetched_by.tolist() == plan.delivery.clients_of(bucket).tolist()


def test_context_parallel_ranks_share_what_is_distributed_at_dp_only() -> None:
    plan = planned([3, 5, 7, 9])
    assert constructor_do_plan(plan, 0).shards == 2
    assert constructor_do_plan(plan, 0).fetched_by.tolist() == [0, 2]
    assert constructor_do_plan(plan.subplans["encoder"], 0).shards == 1


def test_a_bucket_or_source_that_does_not_exist_is_refused() -> None:
    plan = planned([3, 5, 7, 9])
    with pytest.raises(ConfigurationError, match="bucket=2 must be from 0 to 1"):
        constructor_do_plan(plan, 2)
    with pytest.raises(ConfigurationError, match="source 'z' is not one of the 3 sources"):
        loader_do_plan(plan, ["a", "z"])


@given(texts, st.booleans())
def test_a_plan_made_raw_of_a_plans_columns_is_that_plan(
    lengths: list[int], given_order: bool
) -> None:
    plan = planned(lengths)
    to = plan.assignment
    raw = plan_raw(
        plan.samples,
        TREE,
        "DP",
        to.bucket,
        to.micro_batch,
        to.order if given_order else None,
        micro_batches=plan.micro_batches,
        modality=["text"],
        costs=plan.costs,
        max_tokens=60,
        broadcast_at=("TP",),
        methods=plan.methods,
        notes=plan.notes,
        subplans=plan.subplans,
    )
    if given_order:
        assert to_json(raw) == to_json(plan)
    for bucket in range(plan.buckets):
        for k in range(plan.micro_batches):
            rows = to.members(bucket, k).tolist()
            expected = rows if given_order else sorted(rows)
            assert raw.assignment.members(bucket, k).tolist() == expected


@pytest.mark.parametrize(
    ("columns", "options", "words"),
    [
        (([0, 1, 1], [0, 0, 0]), {"max_tokens": 7}, "micro-batch 0 of bucket 1 holds 8 tokens"),
        (([0, 0, 0], [0, 0, 0]), {}, "micro-batch 0 of bucket 1 is empty"),
        (([0, 1], [0, 0]), {}, r"bucket of shape \(2,\) must have one entry for each of 3"),
        (([0, 1, 2], [0, 0, 0]), {}, "bucket=2 of sample 2 must be from 0 to 1"),
        (([0, 1, 1], [0, 0, 1]), {}, "micro_batch=1 of sample 2 must be from 0 to 0"),
        (([0, 1, 1], [0, 0, 0], [0, 1, 2]), {}, "order=1 of sample 1"),
        (([0, 1, 1], [0, 0, 0]), {"costs": [1]}, r"costs of shape \(1,\)"),
        (([0, 1, 1], [0, 0, 0]), {"modality": ["image"]}, "modality 'image' is unknown"),
    ],
)
def test_a_raw_plan_is_held_to_what_every_plan_promises(
    columns: tuple, options: dict, words: str
) -> None:
    with pytest.raises(ConfigurationError, match=words):
        plan_raw(table([3, 5, 3]), TREE, "DP", *columns, micro_batches=1, **options)


def test_a_summary_says_of_each_source_what_is_buffered() -> None:
    buffered = SampleTable(
        ("a", "b", "c"), [2, 0, 2], [8, 1, 5], [0, 0, 0], [8, 1, 5], {"text": [4, 2, 9]}
    )
    summary = summary_buffer(buffered)
    assert list(summary) == ["a", "b", "c"]
    c, b = summary["c"], summary["b"]
    assert (c.samples, c.first, c.last, c.tokens, c.longest) == (2, 5, 8, {"text": 13}, {"text": 9})
    assert (b.samples, b.first, b.last, b.tokens, b.longest) == (0, 0, -1, {"text": 0}, {"text": 0})
