"""One step on a pipeline, against a slow statement of the same model."""

from __future__ import annotations

from functools import cache
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenstep.errors import ConfigurationError
from evenstep.plan.pipeline.schedule import PipelineSchedule
from evenstep.tools.simulate.pipeline_run import PipelineRun, simulate_pipeline


@st.composite
def runs(draw: st.DrawFn) -> PipelineRun:
    stages, chunks = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    schedule = PipelineSchedule(
        stages=stages,
        chunks=chunks,
        consecutive=stages + draw(st.integers(0, 1)) if chunks > 1 else None,
        backward=draw(st.sampled_from([0.0, 1.0, 2.0])),
        latency=draw(st.sampled_from([0.0, 0.5])),
    )
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    rounds = draw(st.integers(1, 2))
    count = draw(st.integers(1, 8)) if chunks == 1 else rounds * (schedule.consecutive or stages)
    shape = (count, stages * chunks) if draw(st.booleans()) else (count,)
    return simulate_pipeline(random.exponential(size=shape), schedule, random.permutation(count))


def reference(run: PipelineRun) -> dict[tuple[bool, int, int], float]:
    """(backward, place of the micro-batch, part) -> end of the pass, by the longest path to it.

    The order of a stage is determined by sort keys, not by simulation: the forward passes have
    numbers, and a backward pass comes right behind the forward pass that is ahead of it by the
    stage's lead, or behind the last one.
    """
    schedule, count = run.schedule, len(run.order)
    stages, chunks = schedule.stages, schedule.chunks
    size = schedule.consecutive or stages

    def number(place: int, chunk: int) -> int:
        if chunks == 1:
            return place
        begin = place - place % size
        return begin * chunks + chunk * min(size, count - begin) + place % size

    before: dict[tuple[bool, int, int], tuple[bool, int, int]] = {}
    for stage in range(stages):
        lead = stages - 1 - stage
        if chunks > 1:
            lead = 2 * lead + (chunks - 1) * size
        keys = {}
        for place in range(count):
            for chunk in range(chunks):
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
        return max(waits) + run.forward[place, part] * (schedule.backward if back else 1.0)

    names = product((False, True), range(count), range(stages * chunks))
    return {name: end(*name) for name in names}


@given(runs())
def test_every_pass_ends_at_the_end_of_the_longest_path_to_it(run: PipelineRun) -> None:
    expected = reference(run)
    assert run.makespan == pytest.approx(max(expected.values()))
    place_of = np.argsort(run.order)
    for number, end in enumerate(run.end.tolist()):
        place = int(place_of[run.micro_batch[number]])
        name = (bool(run.backward[number]), place, int(run.part[number]))
        assert end == pytest.approx(expected.pop(name))
    assert not expected


@settings(max_examples=30)
@given(st.integers(1, 8), st.integers(1, 20))
def test_equal_micro_batches_are_balanced_and_have_the_known_bubble(
    stages: int, count: int
) -> None:
    run = simulate_pipeline(np.full(count, 2.0), PipelineSchedule(stages=stages))
    assert run.makespan == pytest.approx((count + stages - 1) * (2.0 + 4.0))
    assert run.bubble == pytest.approx((stages - 1) / (count + stages - 1))
    assert run.makespan_ratio == pytest.approx(1.0)


def test_an_order_is_that_of_the_micro_batches_given() -> None:
    schedule = PipelineSchedule(stages=3)
    costs = np.array([5.0, 1.0, 2.0, 3.0])
    run = simulate_pipeline(costs, schedule, [1, 3, 0, 2])
    assert run.makespan == simulate_pipeline(costs[[1, 3, 0, 2]], schedule).makespan
    first = np.flatnonzero((run.stage == 0) & ~run.backward)
    assert run.micro_batch[first].tolist() == [1, 3, 0, 2]
    assert (run.end - run.start)[first].tolist() == [1, 3, 5, 2]
    with pytest.raises(ConfigurationError, match="once"):
        simulate_pipeline(costs, schedule, [0, 1, 2, 2])


def test_zero_cost_has_no_bubble() -> None:
    run = simulate_pipeline([0.0, 0.0], PipelineSchedule(stages=2))
    assert (run.makespan, run.bubble, run.makespan_ratio) == (0.0, 0.0, 1.0)
