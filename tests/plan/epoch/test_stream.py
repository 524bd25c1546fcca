"""Streams of an epoch: dealt out to any number of ranks, and again, they leave no position out."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from evenstep.plan.epoch import (
    UNSIZED,
    Holdings,
    Progress,
    Remaining,
    Stream,
    dealt_entries,
    next_deal,
)

WORLDS = st.integers(1, 16)
TOTALS = st.integers(0, 300)
CHAINS = st.lists(WORLDS, min_size=1, max_size=5)
SEEDS = st.integers(0, 2**32 - 1)


def advance(stream, world, draw, *, even=False, most=None):
    """Arbitrary progress of all ranks, and the positions that they have trained on."""
    progress, trained = [], []
    for rank in range(world):
        share = stream.share(rank, world, even=even)
        upper = len(share) if most is None else min(most, len(share))
        taken = int(draw.integers(0, upper + 1))
        done = draw.random(taken) < draw.choice([0.0, 0.5, 0.9, 1.0])
        progress.append(Progress(taken, np.flatnonzero(~done)))
        trained.append(share[:taken][done])
    return progress, np.concatenate(trained)


def remaining(stream):
    return stream.share(0, 1, even=False)


def streams(total, chain, seed):
    """Every stream of an epoch in which the number of ranks changes along `chain`, and what has
    been trained on before each."""
    draw = np.random.default_rng(seed)
    stream, trained = Stream(total), np.empty(0, np.int64)
    yield stream, trained
    for world in chain:
        progress, new = advance(stream, world, draw)
        stream, trained = stream.after(progress), np.concatenate([trained, new])
        yield stream, trained


@given(TOTALS, CHAINS, SEEDS, WORLDS)
def test_shares_partition_the_stream_and_repeat_only_what_makes_them_equal(
    total, chain, seed, world
):
    for stream, trained in streams(total, chain, seed):
        left = np.setdiff1d(np.arange(total), trained).tolist()
        shares = [stream.share(rank, world, even=False) for rank in range(world)]
        assert sorted(np.concatenate(shares).tolist()) == remaining(stream).tolist() == left
        sizes = [len(share) for share in shares]
        assert sum(sizes) == len(stream)
        assert max(sizes) - min(sizes) <= 1
        # Dealt in turn: reading the shares across gives the stream in its order.
        dealt = [
            share[place] for place in range(max(sizes)) for share in shares if place < len(share)
        ]
        assert dealt == sorted(dealt)
        shares = [stream.share(rank, world, even=True) for rank in range(world)]
        assert {len(share) for share in shares} == {-(-len(stream) // world)}
        positions, uses = np.unique(np.concatenate(shares), return_counts=True)
        assert positions.tolist() == remaining(stream).tolist()
        assert uses.sum() - len(uses) == -len(stream) % world


@given(TOTALS, CHAINS, SEEDS, st.integers(0, 20))
def test_leftover_is_never_more_than_was_outstanding(total, chain, seed, depth):
    """So a state grows with what ranks hold, and with how far they are apart, not with the epoch or
    the number of resumes."""
    draw = np.random.default_rng(seed)
    stream = Stream(total)
    for world in chain:
        progress, _ = advance(stream, world, draw, most=depth)
        front = max(one.taken for one in progress)
        held = sum(len(one.unfinished) + front - one.taken for one in progress)
        untouched = max(len(stream.leftover) - front * world, 0)
        stream = stream.after(progress)
        assert len(stream.leftover) <= held + untouched
        assert (stream.leftover < stream.tail).all()
        assert (np.diff(stream.leftover) > 0).all()


@given(st.integers(1, 300), WORLDS, SEEDS)
def test_repeats_that_made_shares_even_are_not_left_over(total, world, seed):
    stream = Stream(total)
    progress, _ = advance(stream, world, np.random.default_rng(seed), even=True)
    own = []  # what each rank has trained on, repeats aside
    for rank, one in enumerate(progress):
        share = stream.share(rank, world, even=False)
        done = np.setdiff1d(np.arange(min(one.taken, len(share))), one.unfinished)
        own += share[done].tolist()
    left = remaining(stream.after(progress))
    assert left.tolist() == np.setdiff1d(np.arange(total), own).tolist()


# What remains of a share


HORIZON = 60  # places looked at; a share is endless


@st.composite
def shares(draw: st.DrawFn) -> Stream:
    leftover = sorted(draw(st.sets(st.integers(0, 25))))
    tail = draw(st.integers(leftover[-1] + 1 if leftover else 0, 30))
    return Stream(UNSIZED, tail, np.array(leftover, np.int64))


@st.composite
def progresses(draw: st.DrawFn) -> Progress:
    taken = draw(st.integers(0, 30))
    unfinished = draw(st.sets(st.integers(0, taken - 1))) if taken else set()
    return Progress(taken, np.array(sorted(unfinished), np.int64))


def listed(share: Stream, progress: Progress) -> list[tuple[int, int]]:
    """(arrival number, place) of what remains, in order."""
    places = [*share.leftover.tolist(), *range(share.tail, 2 * HORIZON)]
    unfinished = set(progress.unfinished.tolist())
    return [
        (number, place)
        for number, place in enumerate(places)
        if number >= progress.taken or number in unfinished
    ]


@given(shares(), progresses(), st.integers(0, HORIZON), st.integers(0, HORIZON))
def test_early_places_are_named_later_ones_counted_and_any_stretch_is_found(
    share: Stream, progress: Progress, begin: int, count: int
) -> None:
    remaining = Remaining.of(share, progress)
    expected = listed(share, progress)
    assert all(remaining.place_of(number) == place for number, place in expected)
    early = list(zip(remaining.numbers.tolist(), remaining.places.tolist()))
    later = zip(itertools.count(remaining.number), range(remaining.place, 2 * HORIZON))
    assert early + list(later) == expected
    assert all(place < remaining.place for _, place in early)
    positions, numbers = remaining.select(begin, count)
    assert list(zip(positions.tolist(), numbers.tolist())) == [
        (place - begin, number) for number, place in expected if begin <= place < begin + count
    ]


# Deals


def holdings(samples: Any, tokens: Any, queued: Any, seen: int = 7, mean: int = 10) -> Holdings:
    return Holdings(
        samples=np.array(samples, np.int64),
        tokens=np.array(tokens, np.int64),
        queued=np.array(queued, np.int64),
        seen_samples=seen,
        seen_tokens=seen * mean,
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
    return holdings(draw(columns), draw(columns), draw(columns), mean=draw(st.integers(1, 20)))


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


def test_sums_beyond_64_bits_are_no_error() -> None:
    # A window of all samples of a large dataset, on thousands of ranks, with long documents.
    held = holdings([2**24] * 4, [2**41] * 4, [0, 0, 0, 5], seen=2**36, mean=2**17)
    assert next_deal(held, left=100, window=2**31).tolist() == [14, 14, 14, 8]
    assert next_deal(held, left=8, window=2**24).tolist() == [1, 1, 1, 0]
