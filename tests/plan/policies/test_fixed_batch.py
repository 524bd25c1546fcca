from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from evenstep.plan import FixedBatch
from plan_world import play

WORLDS = st.lists(st.integers(0, 60), min_size=1, max_size=16)
BATCHES = st.integers(1, 9)
BUFFERS = st.integers(1, 40)


def sources_of(counts: list[int]) -> list[list[int]]:
    return [[1 + (7 * i) % 50 for i in range(count)] for count in counts]


def emitted_by_rank(
    policy: FixedBatch, counts: list[int], buffer_size: int, *, late_end: bool = False
) -> tuple[list[list[list[int]]], list[list[int]]]:
    """Each rank's batches of arrival numbers in order of emission, and what it dropped."""
    batches: list[list[list[int]]] = [[] for _ in counts]
    dropped: list[list[int]] = [[] for _ in counts]
    for turns in play(policy, sources_of(counts), buffer_size=buffer_size, late_end=late_end):
        for rank, turn in turns.items():
            batches[rank] += turn.emitted
            dropped[rank] += turn.dropped
    return batches, dropped


@given(WORLDS, BATCHES, BUFFERS, st.booleans())
def test_batches_are_consecutive_samples_in_order_of_arrival(
    counts: list[int], batch_size: int, buffer_size: int, late_end: bool
) -> None:
    batches, dropped = emitted_by_rank(
        FixedBatch(batch_size), counts, buffer_size, late_end=late_end
    )
    for rank, count in enumerate(counts):
        cuts = range(0, count, batch_size)
        assert batches[rank] == [list(range(i, min(i + batch_size, count))) for i in cuts]
        assert dropped[rank] == []


@given(WORLDS, BATCHES, BUFFERS, st.booleans())
def test_drop_last_drops_only_the_rest_of_each_rank(
    counts: list[int], batch_size: int, buffer_size: int, late_end: bool
) -> None:
    batches, dropped = emitted_by_rank(
        FixedBatch(batch_size, drop_last=True), counts, buffer_size, late_end=late_end
    )
    for rank, count in enumerate(counts):
        full = count // batch_size
        cuts = range(full)
        assert batches[rank] == [list(range(i * batch_size, (i + 1) * batch_size)) for i in cuts]
        assert sorted(dropped[rank]) == list(range(full * batch_size, count))


@given(BATCHES, st.integers(1, 10_000))
def test_a_window_is_a_whole_number_of_batches_and_within_the_buffer_if_one_fits(
    batch_size: int, buffer_size: int
) -> None:
    size = FixedBatch(batch_size).window_size(buffer_size)
    assert size > 0
    assert size % batch_size == 0
    assert size <= max(buffer_size, batch_size)


def test_the_rest_is_dropped_with_the_last_batch_and_costs_no_further_round() -> None:
    (turns,) = play(FixedBatch(2, drop_last=True), sources_of([5]), buffer_size=8)
    assert turns[0].emitted == [[0, 1], [2, 3]]
    assert turns[0].dropped == [4]
