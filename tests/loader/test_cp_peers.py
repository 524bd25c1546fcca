"""Peers agree on one message, and the smallest difference between them is reported."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep.errors import ConfigurationError, PeerError
from evenstep.loader.transport.peers import GroupPlace, WindowChecksum
from evenstep.protocol.wire import abort_message, check_no_abort

SAMPLES = st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=30)


def signed(values: list[int], sizes: list[int], taken: int, message: bytes = b"P") -> bytes:
    """By a rank that received the samples in portions of these sizes, over and over."""
    checksum = WindowChecksum()
    done = 0
    while done < len(values):
        size = min(sizes[done % len(sizes)], len(values) - done)
        numbers = np.arange(done, done + size)
        checksum.note(numbers, np.array(values[done : done + size], np.int64))
        done += size
    return checksum.sign(message, taken)


@given(SAMPLES, st.lists(st.integers(1, 7), min_size=1), st.integers(0, 30))
def test_what_is_signed_depends_on_what_was_in_a_window_and_not_on_portions(
    values: list[int], sizes: list[int], taken: int
) -> None:
    taken = min(taken, len(values))
    assert signed(values, sizes, taken) == signed(values[:taken], [1], taken)


@given(SAMPLES, st.data())
def test_another_sample_in_a_window_changes_what_is_signed(
    values: list[int], data: st.DataObject
) -> None:
    place = data.draw(st.integers(0, len(values) - 1))
    other = data.draw(st.integers(0, 2**32 - 1).filter(lambda value: value != values[place]))
    changed = [*values[:place], other, *values[place + 1 :]]
    assert signed(values, [3], len(values)) != signed(changed, [3], len(values))


@given(st.integers(1, 5), st.integers(1, 6))
def test_neighbours_share_a_data_parallel_rank(context: int, ranks: int) -> None:
    places = [GroupPlace(number, context * ranks, context) for number in range(context * ranks)]
    assert [(p.rank, p.context_rank) for p in places] == [
        (rank, shard) for rank in range(ranks) for shard in range(context)
    ]
    assert {p.world_size for p in places} == {ranks}


def test_a_group_that_cannot_be_divided_is_refused_with_the_remedy() -> None:
    with pytest.raises(ConfigurationError, match=r"context_parallel=4 .* group has 6.*pass group="):
        GroupPlace(0, 6, 4)


def test_peers_that_agree_have_one_message_without_its_signature() -> None:
    messages = [signed([1], [1], 1, b"Pa"), signed([1], [1], 1, b"Pa")]
    messages += [signed([2], [1], 1, b"Pb"), signed([2], [1], 1, b"Pb")]
    assert GroupPlace(3, 4, 2).fold(messages) == [b"Pa", b"Pb"]
    assert GroupPlace(1, 2).fold([b"Px", b"Py"]) == [b"Px", b"Py"]


@pytest.mark.parametrize(
    ("odd", "what"),
    [(signed([1, 3], [1], 2), "the samples of rank 3 "), (signed([1, 2], [1], 2, b"Q"), "lengths")],
)
def test_one_peer_that_differs_fails_the_round_and_is_named(odd: bytes, what: str) -> None:
    like = signed([1, 2], [1], 2)
    folded = GroupPlace(0, 4, 2).fold([like, like, like, odd])
    assert folded[0] == b"P"
    with pytest.raises(PeerError, match=f"rank 1 failed: .*{what}.* those of rank 2"):
        check_no_abort(folded)


def test_a_peer_that_failed_or_left_decides_for_all() -> None:
    like = signed([1], [1], 1)
    failed = abort_message("out of memory")
    assert GroupPlace(0, 4, 2).fold([like, failed, b"", like]) == [failed, b""]
