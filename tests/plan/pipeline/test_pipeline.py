"""The time of a step, against a slow statement of the same model; and orders in which pipelines
wait less."""

from __future__ import annotations

from functools import cache
from itertools import permutations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenstep.plan.pipeline import PipelineSchedule, order_micro_batches


@st.composite
def schedules(draw: st.DrawFn) -> tuple[PipelineSchedule, int]:
    """A schedule, and a number of micro-batches that it runs."""
    stages, chunks = draw(st.integers(1, 5)), draw(st.integers(1, 3))
    schedule = PipelineSchedule(
        stages=stages,
        chunks=chunks,
        backward=draw(st.sampled_from([0.0, 1.0, 2.0, 2.5])),
        latency=draw(st.sampled_from([0.0, 0.25])),
    )
    return schedule, draw(st.integers(1, 9)) if chunks == 1 else stages * draw(st.integers(1, 2))


def reference(schedule: PipelineSchedule, forward: np.ndarray) -> float:
    """The time of a step, by the longest path to each pass (backward, micro-batch, part).

    The order of a stage is determined by sort keys, not by simulation: the forward passes have
    numbers, and a backward pass comes right behind the forward pass that is ahead of it by the
    stage's lead, or behind the last one.
    """
    count, stages, chunks = len(forward), schedule.stages, schedule.chunks

    def number(place: int, chunk: int) -> int:
        begin = place - place % stages
        return begin * chunks + chunk * stages + place % stages if chunks > 1 else place

    before: dict[tuple[bool, int, int], tuple[bool, int, int]] = {}
    for stage in range(stages):
        lead = stages - 1 - stage
        if chunks > 1:
            lead = 2 * lead + (chunks - 1) * stages
        keys = {}
        for place, chunk in product(range(count), range(chunks)):
            part = chunk * stages + stage
            keys[False, place, part] = (number(place, chunk), 0, 0)
            n = number(place, chunks - 1 - chunk)
            keys[True, place, part] = (min(n + lead, count * chunks - 1), 1, n)
        order = sorted(keys, key=keys.__getitem__)
        before.update(zip(order[1:], order))

    @cache
    def end(back: bool, place: int, part: int) -> float:
        waits = [0.0]
        if (back, place, part) in before:
            waits.append(end(*before[back, place, part]))
        source = part + 1 if back else part - 1
        if 0 <= source < stages * chunks:
            apart = (source - part) % stages != 0
            waits.append(end(back, place, source) + schedule.latency * apart)
        elif back:
            waits.append(end(False, place, part))
        return max(waits) + forward[place] / chunks * (schedule.backward if back else 1.0)

    names = product((False, True), range(count), range(stages * chunks))
    return max(end(*name) for name in names)


@given(schedules(), st.integers(0, 2**32))
def test_steps_end_at_the_end_of_the_longest_path(
    case: tuple[PipelineSchedule, int], seed: int
) -> None:
    schedule, count = case
    forward = np.random.default_rng(seed).exponential(size=(count, 3))
    expected = [reference(schedule, each) for each in forward.T]
    assert schedule.makespans(forward).tolist() == pytest.approx(expected)


# Orders

PLAIN = PipelineSchedule(stages=4)


def makespan(
    work: np.ndarray, schedule: PipelineSchedule, order: np.ndarray | None = None
) -> float:
    ordered = work if order is None else work[order]
    return float(schedule.makespans(ordered[:, None])[0])


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
