"""WLB-LLM's Algorithm 1 to the letter, which the book of papers compares with."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.papers.wlb.algorithm_1 import Algorithm1, auto_thresholds
from evenstep.plan.packing import DocumentCost
from evenstep.tools.simulate import sample_lengths


def planner(max_tokens: int = 100, thresholds: tuple[int, ...] = (), count: int = 2) -> Algorithm1:
    return Algorithm1(
        micro_batches=count,
        max_tokens=max_tokens,
        thresholds=thresholds,
        cost=DocumentCost(linear=1),
    )


def packed(made, lengths: list[int]) -> list[list[int]]:
    groups = made(np.array(lengths))
    return [[lengths[i] for i in groups.group(g)] for g in range(len(groups))]


def test_without_room_in_the_one_of_least_work_the_one_of_fewest_tokens_is_tried() -> None:
    # 70 + 25 are less work than 90, and have no room below 100 for 5; so that goes beside the 90.
    assert packed(planner(100), [90, 70, 25, 5]) == [[90, 5], [70, 25]]


def test_every_full_queue_gives_up_its_documents_in_one_step() -> None:
    made = planner(200, thresholds=(30, 60))
    lengths = [31, 61, 32, 62, 33]
    assert packed(made, lengths) == [[31, 62], [61, 32]]
    # The 33 waits for another of its queue.
    assert packed(made, [33, 5]) == [[5]]


def test_an_outlier_without_room_is_an_ordinary_document_from_then_on() -> None:
    made = planner(70, thresholds=(50,))
    assert packed(made, [60, 61, 20, 5]) == [[61], [60, 5]]
    # 20 found no room: it comes again.
    assert packed(made, [20]) == [[20]]


@given(
    st.lists(st.lists(st.integers(1, 120), min_size=1, max_size=12), min_size=1, max_size=6),
    st.sampled_from([(), (40,), (30, 70)]),
)
def test_nothing_is_trained_on_twice_or_lost(
    arriving: list[list[int]], thresholds: tuple[int, ...]
) -> None:
    made, waiting, trained = planner(100, thresholds, 3), [], []
    for new in arriving:
        waiting = waiting + new
        groups = made(np.array(waiting))
        for g in range(len(groups)):
            tokens = [waiting[i] for i in groups.group(g)]
            assert sum(tokens) < 100
            trained += tokens
        gone = set(groups.members.tolist())
        waiting = [length for i, length in enumerate(waiting) if i not in gone]
    assert sorted(trained + waiting) == sorted(length for new in arriving for length in new)


def test_for_pretraining_lengths_outliers_begin_where_exhaustive_search_put_them() -> None:
    lengths = sample_lengths("pretrain-128k", 50_000)
    found = auto_thresholds(lengths, context=128 * 1024, queues=3, cost=DocumentCost())
    assert [round(t / 1024) for t in found] == [48, 67, 93]
