"""Streams: dealt out to any number of ranks, and again, they leave no position out and name none
twice."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DistributedSampler

from evenstep.errors import InvariantError
from evenstep.plan.epoch.stream import Progress, Stream

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


@settings(max_examples=120)
@given(TOTALS, CHAINS, SEEDS, WORLDS)
def test_shares_partition_the_stream(total, chain, seed, world):
    for stream, _ in streams(total, chain, seed):
        shares = [stream.share(rank, world, even=False) for rank in range(world)]
        assert sorted(np.concatenate(shares).tolist()) == remaining(stream).tolist()
        sizes = [len(share) for share in shares]
        assert sum(sizes) == len(stream)
        assert max(sizes) - min(sizes) <= 1
        # Dealt in turn: reading the shares across gives the stream in its order.
        dealt = [
            share[place] for place in range(max(sizes)) for share in shares if place < len(share)
        ]
        assert dealt == sorted(dealt)


@settings(max_examples=120)
@given(TOTALS, CHAINS, SEEDS, WORLDS)
def test_even_shares_are_equal_and_repeat_only_what_makes_them_so(total, chain, seed, world):
    for stream, _ in streams(total, chain, seed):
        shares = [stream.share(rank, world, even=True) for rank in range(world)]
        assert {len(share) for share in shares} == {-(-len(stream) // world)}
        positions, uses = np.unique(np.concatenate(shares), return_counts=True)
        assert positions.tolist() == remaining(stream).tolist()
        assert uses.sum() - len(uses) == -len(stream) % world


@settings(max_examples=120)
@given(st.integers(1, 300), WORLDS)
def test_even_shares_are_those_of_torch_distributed_sampler(total, world):
    for rank in range(world):
        sampler = DistributedSampler(range(total), world, rank, shuffle=False, drop_last=False)
        assert Stream(total).share(rank, world, even=True).tolist() == list(sampler)


@settings(max_examples=120)
@given(TOTALS, CHAINS, SEEDS)
def test_after_leaves_exactly_what_has_not_been_trained_on(total, chain, seed):
    for stream, trained in streams(total, chain, seed):
        assert len(np.unique(trained)) == len(trained)
        expected = np.setdiff1d(np.arange(total), trained)
        assert remaining(stream).tolist() == expected.tolist()
        assert len(stream) == len(expected)


@settings(max_examples=120)
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


@given(TOTALS, WORLDS)
def test_an_epoch_that_is_trained_through_leaves_nothing(total, world):
    stream = Stream(total)
    for even in (True, False):
        counts = [len(stream.share(rank, world, even=even)) for rank in range(world)]
        done = stream.after([Progress(count, np.empty(0, np.int64)) for count in counts])
        assert len(done) == len(done.leftover) == 0
        assert len(done.share(world - 1, world, even=True)) == 0


@settings(max_examples=120)
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


def test_two_ranks_that_hold_the_same_position_are_found_out():
    broken = Stream(4, 4, np.array([1, 1, 3]))
    with pytest.raises(InvariantError, match="two ranks hold the same position"):
        broken.after([Progress(0, np.empty(0, np.int64))] * 2)


def test_a_stream_of_ten_million_is_never_held_as_a_whole():
    total, world, window = 10**7, 64, 1024
    draw = np.random.default_rng(0)
    stream = Stream(total)
    progress = []
    for _ in range(world):
        taken = int(draw.integers(70_000, 71_000))
        progress.append(Progress(taken, np.arange(taken - window, taken)))
    tracemalloc.start()
    try:
        after = stream.after(progress)
        _, state_peak = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        before, _ = tracemalloc.get_traced_memory()
        share = after.share(17, 48, even=False)
        _, share_peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    front = max(one.taken for one in progress)
    held = sum(len(one.unfinished) + front - one.taken for one in progress)
    assert len(after.leftover) == held
    assert len(after) == total - sum(one.taken - window for one in progress)
    assert after.tail == front * world
    # Some arrays as long as what is held, or as one rank's share: far from 80 MB of positions.
    assert state_peak < 10 * 8 * held
    assert share_peak - before < 8 * 8 * len(share)
    assert len(share) in (len(after) // 48, len(after) // 48 + 1)
