"""Deals: in turn, never more than there is, level at the end."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from evenstep.plan.epoch.dealing import Holdings, dealt_entries, next_deal


def holdings(samples: list[int], tokens: list[int], queued: list[int], mean: int = 10) -> Holdings:
    columns = [np.array(column, np.int64) for column in (samples, tokens, queued)]
    return Holdings(
        samples=columns[0],
        tokens=columns[1],
        queued=columns[2],
        seen_samples=7,
        seen_tokens=7 * mean,
    )


@given(st.lists(st.integers(0, 12), min_size=1, max_size=6), st.integers(0, 50))
def test_ranks_draw_in_turn(counts: list[int], begin: int) -> None:
    turns = range(max(counts))
    owners = [rank for turn in turns for rank, count in enumerate(counts) if count > turn]
    for rank in range(len(counts)):
        expected = [begin + entry for entry, owner in enumerate(owners) if owner == rank]
        assert dealt_entries(np.array(counts), rank, begin).tolist() == expected


@st.composite
def any_holdings(draw: st.DrawFn) -> Holdings:
    ranks = draw(st.integers(1, 6))
    columns = st.lists(st.integers(0, 30), min_size=ranks, max_size=ranks)
    return holdings(draw(columns), draw(columns), draw(columns), draw(st.integers(1, 20)))


@given(any_holdings(), st.integers(1, 500), st.integers(1, 20))
def test_a_deal_is_as_one_by_one_to_whom_holds_least(
    held: Holdings, left: int, window: int
) -> None:
    dealt = next_deal(held, left=left, window=window)
    ranks = len(held.samples)
    queue = min(window, left // (2 * ranks))
    most = left // 2 if left > 2 * ranks else left
    mean = held.seen_tokens // held.seen_samples
    loads = held.tokens + held.queued * mean
    room = np.maximum(-((loads - (window + queue) * mean) // mean), 0)
    free = np.maximum(2 * window - held.samples - held.queued, 0)
    room = np.minimum(room, free)
    if room.sum() <= most:
        assert dealt.tolist() == room.tolist()
        return
    expected = [0] * ranks
    for _ in range(most):
        least = int(loads.argmin())
        loads[least] += mean
        expected[least] += 1
    assert dealt.tolist() == np.minimum(expected, free).tolist()


def test_before_anything_is_known_all_draw_alike() -> None:
    held = Holdings(
        samples=np.zeros(3, np.int64),
        tokens=np.zeros(3, np.int64),
        queued=np.zeros(3, np.int64),
        seen_samples=0,
        seen_tokens=0,
    )
    assert next_deal(held, left=100, window=4).tolist() == [8, 8, 8]
    assert next_deal(held, left=20, window=4).tolist() == [4, 3, 3]
    assert next_deal(held, left=2, window=4).tolist() == [1, 1, 0]


def test_sums_beyond_64_bits_are_no_error() -> None:
    # A window of all samples of a large dataset, on thousands of ranks, with long documents.
    held = Holdings(
        samples=np.full(4, 2**24),
        tokens=np.full(4, 2**24 * 2**17),
        queued=np.array([0, 0, 0, 5]),
        seen_samples=4096 * 2**24,
        seen_tokens=4096 * 2**24 * 2**17,
    )
    assert next_deal(held, left=100, window=2**31).tolist() == [14, 14, 14, 8]
    assert next_deal(held, left=8, window=2**24).tolist() == [1, 1, 1, 0]
