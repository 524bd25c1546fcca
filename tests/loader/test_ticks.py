"""What ranks say to each other every half second: checked, and told in words to who waits."""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep.errors import PeerError
from evenstep.loader.transport.patience import Patience
from evenstep.loader.transport.peers import CARD, Peer
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


def test_a_rank_introduces_itself() -> None:
    here = Peer.here()
    card = here.card()
    assert len(card) == CARD
    assert Peer.read(3, card) == here
    assert not here.stopped


@given(st.one_of(st.binary(max_size=CARD), st.sampled_from([b"[[" * 256, b"{}", b'{"host": 1}'])))
def test_any_bytes_are_a_card_or_refused(card: bytes) -> None:
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


def test_a_wait_is_told_at_ever_longer_intervals(caplog: Any) -> None:
    patience = Patience(0.05)
    began = time.monotonic()
    patience.trainer(Doing.WAITS)
    _await_lines(caplog, 4)
    patience.close()
    assert time.monotonic() - began >= 0.4  # 0.05, 0.1, 0.2 and 0.4


def _await_lines(caplog: Any, count: int) -> None:
    deadline = time.monotonic() + 20
    while len(caplog.messages) < count:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    assert {record.levelno for record in caplog.records} == {logging.WARNING}
