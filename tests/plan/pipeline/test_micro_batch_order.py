"""Orders that make a pipeline wait less, and shares of ranks."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenstep.plan.pipeline import PipelineSchedule, order_micro_batches
from evenstep.tools.simulate.distributions import sample_lengths

PLAIN = PipelineSchedule(stages=4)


def makespan(
    work: np.ndarray, schedule: PipelineSchedule, order: np.ndarray | None = None
) -> float:
    ordered = work if order is None else work[order]
    return float(schedule.makespans(ordered[:, None])[0])


def cut_at_windows(micro_batches: int, iterations: int, seed: int) -> np.ndarray:
    """[iterations, micro-batches] work where documents are concatenated and cut every 131,072
    tokens."""
    window = 131_072
    total = micro_batches * iterations * window
    ends = np.cumsum(sample_lengths("pretrain-128k", total // 3000, seed))
    assert ends[-1] > total
    cuts = np.union1d(np.arange(0, total + 1, window), ends[ends < total])
    lengths = np.diff(cuts).astype(np.float64)
    work = lengths * (lengths + 24_576)
    return np.bincount(cuts[:-1] // window, work).reshape(iterations, micro_batches)


works = st.lists(st.floats(0, 1000), min_size=1, max_size=20).map(np.array)


@given(works, st.sampled_from([PLAIN, PipelineSchedule(stages=2, backward=1.0, latency=5.0)]))
def test_an_order_names_every_micro_batch_once_and_is_never_worse_than_the_given_one(
    work: np.ndarray, schedule: PipelineSchedule
) -> None:
    order = order_micro_batches(work, schedule)
    assert sorted(order.tolist()) == list(range(len(work)))
    assert makespan(work, schedule, order) <= makespan(work, schedule)
    assert order_micro_batches(work, schedule).tolist() == order.tolist()


@settings(max_examples=15)
@given(st.integers(1, 6), st.integers(0, 2**32))
def test_no_order_of_few_is_better(count: int, seed: int) -> None:
    work = np.random.default_rng(seed).exponential(size=count)
    chosen = makespan(work, PLAIN, order_micro_batches(work, PLAIN))
    orders = map(np.array, permutations(range(count)))
    assert chosen == pytest.approx(min(makespan(work, PLAIN, order) for order in orders))


@given(works)
def test_what_rounding_alone_makes_shorter_stays_where_it_is(work: np.ndarray) -> None:
    # On one stage the makespan is a sum, the same in every order but for rounding.
    order = order_micro_batches(work, PipelineSchedule(stages=1))
    assert order.tolist() == list(range(len(work)))


@pytest.mark.parametrize(("count", "gain", "ratio"), [(4, 1.05, 1.09), (16, 1.2, 1.1)])
def test_order_alone_makes_up_for_most_of_what_cut_windows_lose(
    count: int, gain: float, ratio: float
) -> None:
    """WLB-LLM's unbalanced packing on a pipeline of four stages."""
    before = after = balanced = 0.0
    for work in cut_at_windows(count, 60, seed=3):
        before += makespan(work, PLAIN)
        after += makespan(work, PLAIN, order_micro_batches(work, PLAIN))
        balanced += makespan(np.full(count, work.mean()), PLAIN)
    assert before / after > gain
    assert after / balanced < ratio < before / balanced
