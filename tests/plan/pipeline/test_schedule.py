"""The order of passes on every stage, and the ends that follow from it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenstep.errors import ConfigurationError
from evenstep.plan.pipeline.schedule import PassGraph, PipelineSchedule


@st.composite
def schedules(draw: st.DrawFn) -> tuple[PipelineSchedule, int]:
    """A schedule, and a number of micro-batches that it runs."""
    stages, chunks = draw(st.integers(1, 5)), draw(st.integers(1, 3))
    consecutive = stages + draw(st.integers(0, 2))
    schedule = PipelineSchedule(
        stages=stages,
        chunks=chunks,
        consecutive=consecutive,
        backward=draw(st.sampled_from([0.0, 1.0, 2.0, 2.5])),
        latency=draw(st.sampled_from([0.0, 0.25])),
    )
    if chunks == 1:
        return schedule, draw(st.integers(1, 9))
    rest = draw(st.integers(stages, consecutive)) % consecutive
    return schedule, draw(st.integers(1, 2)) * consecutive + rest


def order_on(graph: PassGraph, stage: int) -> list[tuple[str, int, int]]:
    """Passes of a stage: "F" or "B", micro-batch, part of the model."""
    mine = np.flatnonzero(graph.stage == stage)
    kinds = np.where(graph.backward, "B", "F")
    return [(str(kinds[n]), int(graph.micro_batch[n]), int(graph.part[n])) for n in mine]


def test_plain_stages_run_ahead_by_their_distance_from_the_last_one() -> None:
    graph = PipelineSchedule(stages=3).graph(4)
    kinds = ["".join(f"{kind}{m}" for kind, m, _ in order_on(graph, s)) for s in range(3)]
    assert kinds == ["F0F1F2B0F3B1B2B3", "F0F1B0F2B1F3B2B3", "F0B0F1B1F2B2F3B3"]


def test_interleaved_stages_change_chunks_as_megatron_does() -> None:
    # Two stages of two chunks, three micro-batches at a time, the last round of two: the first
    # stage goes ahead by 2 * 1 + 1 * 3 passes.
    graph = PipelineSchedule(stages=2, chunks=2, consecutive=3).graph(5)
    order = order_on(graph, 0)
    forward = [(m, part // 2) for kind, m, part in order if kind == "F"]
    backward = [(m, part // 2) for kind, m, part in order if kind == "B"]
    batches = [0, 1, 2, 0, 1, 2, 3, 4, 3, 4]
    assert forward == list(zip(batches, [0, 0, 0, 1, 1, 1, 0, 0, 1, 1]))
    assert backward == list(zip(batches, [1, 1, 1, 0, 0, 0, 1, 1, 0, 0]))
    assert "".join(kind for kind, _, _ in order) == "FFFFF" + "FB" * 5 + "BBBBB"


@settings(max_examples=40)
@given(schedules())
def test_every_pass_is_run_once_and_waits_only_for_earlier_ones(
    case: tuple[PipelineSchedule, int],
) -> None:
    schedule, count = case
    graph = schedule.graph(count)
    passes = set(zip(graph.backward.tolist(), graph.micro_batch.tolist(), graph.part.tolist()))
    assert len(passes) == len(graph) == 2 * count * schedule.parts
    for waits in (graph.before, graph.needs):
        assert ((waits < np.arange(len(graph))) | (waits == len(graph))).all()


@settings(max_examples=40)
@given(schedules(), st.integers(0, 2**32), st.booleans())
def test_many_orders_at_once_end_when_each_alone_does(
    case: tuple[PipelineSchedule, int], seed: int, by_part: bool
) -> None:
    schedule, count = case
    random = np.random.default_rng(seed)
    work = random.exponential(size=(count, schedule.parts) if by_part else count)
    forward = schedule.forward_times(work)
    orders = np.array([random.permutation(count) for _ in range(5)])
    graph = schedule.graph(count)
    together = graph.makespans(graph.times_of_orders(schedule, forward, orders), schedule.latency)
    alone = [
        max(graph.ends(graph.times(schedule, forward[order]), schedule.latency)) for order in orders
    ]
    assert together.tolist() == alone


@settings(max_examples=20)
@given(st.integers(1, 9), st.integers(1, 12), st.floats(0, 4))
def test_equal_micro_batches_take_the_closed_form(stages: int, count: int, ratio: float) -> None:
    schedule = PipelineSchedule(stages=stages, backward=ratio)
    graph = schedule.graph(count)
    times = graph.times(schedule, schedule.forward_times(np.full(count, 3.0)))
    assert max(graph.ends(times, 0.0)) == pytest.approx((count + stages - 1) * 3 * (1 + ratio))


@pytest.mark.parametrize("chunks", [2, 3, 4])
def test_chunks_divide_the_bubble(chunks: int) -> None:
    schedule = PipelineSchedule(stages=4, chunks=chunks)
    graph = schedule.graph(12)
    times = graph.times(schedule, schedule.forward_times(np.ones(12)))
    assert max(graph.ends(times, 0.0)) == pytest.approx((12 + 3 / chunks) * 3)


def test_latency_counts_once_for_every_change_of_stage() -> None:
    for stages, chunks in ((4, 1), (1, 3), (3, 1)):
        schedule = PipelineSchedule(stages=stages, chunks=chunks, latency=0.5)
        graph = schedule.graph(1)
        times = graph.times(schedule, schedule.forward_times([6.0]))
        assert max(graph.ends(times, 0.5)) == pytest.approx(6 * 3 * stages + 2 * 0.5 * (stages - 1))


def test_wrong_options_are_refused() -> None:
    for options, message in (
        ({"stages": 0}, "stages=0"),
        ({"chunks": 0}, "chunks=0"),
        ({"stages": 4, "consecutive": 3}, "consecutive=3"),
        ({"backward": -1.0}, r"backward=-1\.0"),
        ({"latency": float("inf")}, "latency=inf"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            PipelineSchedule(**options)  # type: ignore[arg-type]


def test_micro_batches_that_do_not_suit_an_interleaved_schedule_are_refused() -> None:
    schedule = PipelineSchedule(stages=4, chunks=2)
    schedule.graph(8)
    for count in (3, 6, 9):
        with pytest.raises(ConfigurationError, match=f"micro_batches={count}"):
            schedule.graph(count)
    PipelineSchedule(stages=2, chunks=2, consecutive=3).graph(5)  # a last round of two suits it


def test_wrong_times_and_orders_are_refused() -> None:
    schedule = PipelineSchedule(stages=4)
    for times, message in (
        (np.ones((3, 2)), r"\(3, 2\)"),
        ([], r"\(0,\)"),
        ([1.0, -1.0], "negative"),
        ([1.0, float("nan")], "finite"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            schedule.forward_times(times)
    for order in ([0, 0, 1], [0, 1], [1, 2, 3]):
        with pytest.raises(ConfigurationError, match="each of 3 micro-batches once"):
            schedule.check_order(order, 3)
