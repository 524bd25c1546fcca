"""What remains of a rank's share is what a plain list says."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from evenstep.plan.epoch.remaining import UNSIZED, Remaining
from evenstep.plan.epoch.stream import Progress, Stream

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


@given(shares(), progresses())
def test_early_places_are_named_and_later_ones_counted(share: Stream, progress: Progress) -> None:
    remaining = Remaining.of(share, progress)
    expected = listed(share, progress)
    early = list(zip(remaining.numbers.tolist(), remaining.places.tolist()))
    later = zip(itertools.count(remaining.number), range(remaining.place, 2 * HORIZON))
    assert early + list(later) == expected
    assert all(place < remaining.place for _, place in early)


@given(shares(), progresses())
def test_the_place_of_every_arrival_number_that_remains(share: Stream, progress: Progress) -> None:
    remaining = Remaining.of(share, progress)
    for number, place in listed(share, progress):
        assert remaining.place_of(number) == place


@given(shares(), progresses(), st.integers(0, HORIZON), st.integers(0, HORIZON))
def test_a_stretch_of_places_is_searched_for_what_remains(
    share: Stream, progress: Progress, begin: int, count: int
) -> None:
    positions, numbers = Remaining.of(share, progress).select(begin, count)
    assert list(zip(positions.tolist(), numbers.tolist())) == [
        (place - begin, number)
        for number, place in listed(share, progress)
        if begin <= place < begin + count
    ]
