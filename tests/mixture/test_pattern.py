"""Draws come from a counter: known numbers, the same ones for every way of asking, and spread."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from evenstep.mixture.pattern import (
    even_points,
    labels,
    philox,
    points,
    random_words,
)

seeds = st.integers(0, 2**64 - 1)
steps = st.integers(0, 2**40)


def test_philox_gives_the_published_numbers() -> None:
    # The known answers that come with Random123.
    zeros = philox(np.zeros((4, 1), np.uint64), 0)[:, 0]
    assert [f"{int(w):08x}" for w in zeros] == ["6627e8d5", "e169c58d", "bc57ac4c", "9b00dbd8"]
    ones = philox(np.full((4, 1), 2**32 - 1, np.uint64), 2**64 - 1)[:, 0]
    assert [f"{int(w):08x}" for w in ones] == ["408f276d", "41c83b0e", "a20bc7c6", "6d5451fd"]
    pi = np.array([[0x243F6A88], [0x85A308D3], [0x13198A2E], [0x03707344]], np.uint64)
    found = philox(pi, 0x299F31D0_A4093822)[:, 0]
    assert [f"{int(w):08x}" for w in found] == ["d16cfe09", "94fdcceb", "5001e420", "24126ea1"]


@given(seeds, steps, st.integers(1, 300), st.integers(1, 1000))
def test_a_draw_is_the_same_however_many_are_made(seed, step, few, more):
    few, more = sorted((few, more))
    assert np.array_equal(points(seed, step, few), points(seed, step, more)[:few])
    assert np.array_equal(random_words(seed, step, 5, few), random_words(seed, step, 5, more)[:few])


@given(seeds, steps)
def test_seeds_steps_and_purposes_have_numbers_of_their_own(seed, step):
    here = random_words(seed, step, 1, 4).tolist()
    others = [(seed ^ 1, step, 1), (seed ^ 1 << 63, step, 1), (seed, step + 1, 1), (seed, step, 2)]
    for other in [*others, (seed, step + 2**32, 1)]:
        assert here != random_words(*other, 4).tolist()


@given(seeds, st.integers(1, 3000), st.lists(st.floats(0, 1), min_size=1, max_size=20))
def test_counts_of_a_step_are_close_to_their_shares(seed, count, shares):
    given_shares = np.array(shares) + 1e-6
    given_shares[1::3] = 0.0
    counts = np.bincount(labels(points(seed, 3, count), given_shares), minlength=len(shares))
    expected = count * given_shares / given_shares.sum()
    # Two ends of an interval, each off by at most half a point per binary digit and one.
    assert np.abs(counts - expected).max() <= np.log2(count + 1) + 2
    assert not counts[given_shares == 0].any()


@given(seeds, st.integers(1, 500), st.lists(st.floats(0, 1), min_size=1, max_size=20))
def test_counts_of_a_step_of_known_size_are_their_shares_rounded(seed, count, shares):
    given_shares = np.array(shares) + 1e-6
    counts = np.bincount(labels(even_points(seed, 3, count), given_shares), minlength=len(shares))
    expected = count * given_shares / given_shares.sum()
    assert np.abs(counts - expected).max() < 1 + 1e-9


def test_edges_lost_by_rounding_draw_no_source_of_weight_zero():
    shares = np.array([0.1] * 10 + [0.0])
    assert labels(np.array([1 - 2.0**-53]), shares).tolist() == [9]
    assert labels(np.array([0.0]), np.array([0.0, 1.0])).tolist() == [1]
