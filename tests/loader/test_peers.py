"""What ranks say to each other every half second, checked and told in words to who waits, and peers
that agree on one message."""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep.errors import ConfigurationError, PeerError
from evenstep.loader.transport.patience import Patience
from evenstep.loader.transport.peers import CARD, GroupPlace, Peer, WindowChecksum
from evenstep.loader.transport.session import (
    DONE,
    FRAME,
    HEAD,
    LONGEST,
    MESSAGE,
    WAITING,
    Doing,
    Tick,
    decode_ticks,
    encode_tick,
)

GOOD = encode_tick(Tick(MESSAGE, Doing.WORKS, 41, 3, 5), b"hello")


def test_a_tick_comes_back() -> None:
    ticks = [
        Tick(WAITING, Doing.WAITS, -1, 0, 0),
        Tick(MESSAGE, Doing.WORKS, 41, 3, LONGEST),
        Tick(DONE, Doing.HAS_LEFT, 2**31 - 1, 2**32 - 1, 0),
    ]
    assert decode_ticks([encode_tick(tick, b"") for tick in ticks]) == ticks
    assert decode_ticks([GOOD.ljust(FRAME, b"\0")]) == [Tick(MESSAGE, Doing.WORKS, 41, 3, 5)]


@pytest.mark.parametrize(
    "damage",
    [
        (0, b"\0"),  # another mark
        (1, b"\x03"),  # no such state
        (2, b"\x07"),  # no such doing
        (3, b"\xf0\xff\xff\xff"),  # step -16
        (11, b"\0\0\0\0"),  # a message of no bytes
        (11, b"\xff\xff\xff\xff"),  # and one too long
        (1, b"\0"),  # a message of a rank that has none
    ],
)
def test_a_damaged_tick_is_refused_and_its_sender_named(damage: tuple[int, bytes]) -> None:
    at, instead = damage
    bad = GOOD[:at] + instead + GOOD[at + len(instead) :]
    with pytest.raises(PeerError, match="rank 1 sent a damaged tick: "):
        decode_ticks([GOOD, bad])


@given(st.binary(min_size=HEAD, max_size=FRAME))
def test_any_bytes_are_a_tick_or_refused(frame: bytes) -> None:
    try:
        (tick,) = decode_ticks([frame])
    except PeerError:
        return
    assert encode_tick(tick, frame[HEAD:]) == frame


@given(st.one_of(st.binary(max_size=CARD), st.sampled_from([b"[[" * 256, b"{}", b'{"host": 1}'])))
def test_only_the_bytes_of_a_card_are_one(card: bytes) -> None:
    here = Peer.here()
    assert len(here.card()) == CARD
    assert Peer.read(3, here.card()) == here
    with pytest.raises(PeerError, match="rank 2 introduced itself"):
        Peer.read(2, card)


@pytest.fixture
def patience(caplog: Any) -> Iterator[Patience]:
    patience = Patience(0.05, rank=0)
    patience.peers = [Peer("here", os.getpid()), Peer("there", 7), Peer("yonder", 8)]
    yield patience
    patience.close()


READY = Tick(MESSAGE, Doing.WAITS, 3, 9, 5)
BUSY = Tick(WAITING, Doing.WORKS, 3, 25, 0)
STARVED = Tick(WAITING, Doing.WAITS, 3, 9, 0)
FRESH = Tick(WAITING, Doing.WORKS, -1, 9, 0)


@pytest.mark.parametrize(
    ("ticks", "says"),
    [
        ((READY, BUSY, READY), "rank 1 (process 7 on there), which has been busy with step 3 for"),
        ((READY, READY, STARVED), "rank 2 (process 8 on yonder), which has waited 9 s for its dat"),
        ((READY, BUSY, FRESH), "; rank 2 (process 8 on yonder), which has started the pass and"),
        ((STARVED, BUSY, READY), "for its own dataset, sampler or collate_fn"),
        ((), "for its own dataset"),
    ],
    ids=["busy", "slow samples", "not asked", "own samples", "alone"],
)
def test_who_waits_says_for_whom(
    patience: Patience, caplog: Any, ticks: tuple[Tick, ...], says: str
) -> None:
    patience.ticks = ticks
    patience.trainer(Doing.WAITS)
    _await_lines(caplog, 1)
    patience.trainer(Doing.WORKS, 4)
    assert re.match(r"rank 0 has waited \d+ s for ", caplog.messages[0])
    assert says in caplog.messages[0]
    assert patience.doing()[:2] == (Doing.WORKS, 4)


def _await_lines(caplog: Any, count: int) -> None:
    deadline = time.monotonic() + 20
    while len(caplog.messages) < count:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    assert {record.levelno for record in caplog.records} == {logging.WARNING}


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


@given(SAMPLES, st.lists(st.integers(1, 7), min_size=1), st.data())
def test_what_is_signed_depends_on_what_was_in_a_window_and_not_on_portions(
    values: list[int], sizes: list[int], data: st.DataObject
) -> None:
    taken = data.draw(st.integers(0, len(values)))
    assert signed(values, sizes, taken) == signed(values[:taken], [1], taken)
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
    # A group that cannot be divided so is refused.
    with pytest.raises(ConfigurationError, match=r"context_parallel=4 .* group has 6.*pass group="):
        GroupPlace(0, 6, 4)


def test_peers_that_agree_have_one_message_without_its_signature() -> None:
    messages = [signed([1], [1], 1, b"Pa"), signed([1], [1], 1, b"Pa")]
    messages += [signed([2], [1], 1, b"Pb"), signed([2], [1], 1, b"Pb")]
    assert GroupPlace(3, 4, 2).fold(messages) == [b"Pa", b"Pb"]
    assert GroupPlace(1, 2).fold([b"Px", b"Py"]) == [b"Px", b"Py"]
