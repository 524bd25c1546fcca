"""Messages: what goes in comes out, and a wrong one names what is wrong and whose it is."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenstep.errors import MismatchError, PeerError
from evenstep.protocol.bodies import (
    ProposalHead,
    compare_hellos,
    decode_proposals,
    decode_receipts,
    encode_hello,
    encode_proposal,
    encode_receipt,
)
from evenstep.protocol.slow_ranks import OwnPace
from evenstep.protocol.wire import (
    HELLO,
    PROPOSAL,
    RECEIPT,
    VERSION,
    abort_message,
    check_no_abort,
    encode,
    open_all,
)

KINDS = st.sampled_from([HELLO, PROPOSAL, RECEIPT])
ROUNDS = st.integers(0, 2**32 - 1)
LEFT = st.integers(-1, 2**40)
BODIES = st.lists(st.binary(max_size=40), min_size=1, max_size=16)
VALUES = st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=8))
COMPARED = st.dictionaries(st.text(min_size=1, max_size=8), VALUES, max_size=5)
WINDOW, LONGEST, MOST = 50, 100, 2**53


def sent(kind, round, bodies):
    return [encode(kind, body, rank=rank, round=round) for rank, body in enumerate(bodies)]


def opened(kind, round, bodies):
    return open_all(sent(kind, round, bodies), kind, round, rank=0, epoch=0)


def proposals(bodies):
    return decode_proposals([memoryview(body) for body in bodies])


def receipts(bodies):
    return decode_receipts([memoryview(body) for body in bodies])


@given(KINDS, ROUNDS, BODIES)
def test_bodies_come_out_as_they_went_in(kind, round, bodies):
    assert [bytes(body) for body in opened(kind, round, bodies)] == bodies


@st.composite
def proposal(draw, numbers):
    samples = draw(st.integers(0, WINDOW))
    tokens = draw(st.integers(samples, samples * LONGEST))
    lacks = not samples and draw(st.booleans())
    supervised, room = draw(st.integers(0, MOST - 1)), draw(st.integers(0, MOST - 1))
    shown = draw(st.integers(0, samples)), draw(st.integers(0, samples))
    too_long = draw(st.integers(0, MOST - 1))
    longest, fits = draw(st.integers(samples > 0, LONGEST)), draw(st.integers(0, MOST - 1))
    ratios = draw(st.integers(0, MOST - 1)), draw(st.integers(0, MOST - 1))
    pace = OwnPace(*draw(st.tuples(*[st.integers(-MOST, MOST - 1)] * 4)))
    head = ProposalHead(
        *(not samples, lacks, samples, supervised, tokens, room, *shown, longest, fits),
        too_long=too_long,
        ratios=ratios,
        pace=pace,
    )
    row = st.lists(st.integers(-(2**63), 2**63 - 1), min_size=numbers, max_size=numbers)
    return head, np.array(draw(row) if samples else [0] * numbers, np.int64)


@given(st.integers(0, 5).flatmap(lambda k: st.lists(proposal(k), min_size=1, max_size=6)))
def test_proposals_come_out_as_they_went_in(given):
    bodies = [
        encode_proposal(head, message[: 0 if head.finished else None]) for head, message in given
    ]
    heads, numbers = proposals(bodies)
    *columns, ratios, paces = [getattr(heads, name).tolist() for name in ProposalHead._fields]
    assert list(zip(*columns, map(tuple, ratios), map(tuple, paces))) == [head for head, _ in given]
    for got, (head, message) in zip(numbers, given):
        assert head.finished or got.tolist() == message.tolist()
        assert not head.finished or not got.any()


@given(LEFT, st.binary(max_size=64), st.binary(max_size=64))
def test_receipts_come_out_as_they_went_in(left, totals, lent):
    got = receipts([encode_receipt(left, totals, lent)])
    assert (got.left.tolist(), *map(bytes, got.totals), got.lent) == ([left], totals, lent)


@given(COMPARED, st.lists(LEFT, min_size=1, max_size=16), st.randoms(use_true_random=False))
def test_hellos_that_agree_tell_what_every_rank_has_left(compared, left, random):
    hellos = []
    for number in left:
        items = list(compared.items())
        random.shuffle(items)  # the order in which a rank names things means nothing
        hellos.append(encode_hello(dict(items), number))
    assert compare_hellos(opened(HELLO, 0, hellos)).tolist() == left


@settings(max_examples=50)
@given(COMPARED, st.integers(2, 16), st.text(min_size=1, max_size=8), VALUES, VALUES, st.data())
def test_hellos_that_differ_name_the_key_and_the_ranks(compared, world, key, usual, odd, data):
    if usual == odd:
        return
    culprit = data.draw(st.integers(0, world - 1))
    hellos = [
        encode_hello({**compared, key: odd if rank == culprit else usual}, rank)
        for rank in range(world)
    ]
    other = culprit or 1
    first, second = (odd, usual) if culprit == 0 else (usual, odd)
    said = f"ranks differ in {key}: rank 0 has {first!r}, rank {other} has {second!r};"
    with pytest.raises(MismatchError, match=re.escape(said)):
        compare_hellos(opened(HELLO, 0, hellos))


@given(st.integers(0, 255).filter(lambda version: version != VERSION), st.binary(max_size=40))
def test_another_version_is_refused_by_version_whatever_else_it_changed(version, rest):
    theirs = b"ev" + bytes([version]) + rest
    said = f"ranks differ in protocol: rank 0 has version {VERSION}, rank 1 has version {version};"
    with pytest.raises(MismatchError, match=said):
        open_all([*sent(HELLO, 0, [b""]), theirs], HELLO, 0, rank=0, epoch=0)


def test_hellos_of_other_rounds_are_left_to_be_compared():
    """So that the error names the round of each rank, not a mix-up of loaders."""
    hellos = [
        encode(HELLO, encode_hello({"round to begin with": round}, 0), rank=rank, round=round)
        for rank, round in enumerate((4, 9))
    ]
    for rank in range(2):
        bodies = open_all(hellos, HELLO, (4, 9)[rank], rank=rank, epoch=0)
        said = "ranks differ in round to begin with: rank 0 has 4, rank 1 has 9"
        with pytest.raises(MismatchError, match=said):
            compare_hellos(bodies)


@given(BODIES, ROUNDS, st.data())
def test_an_abort_or_a_rank_that_left_is_named(bodies, round, data):
    culprit = data.draw(st.integers(0, len(bodies) - 1))
    reason = data.draw(st.text(max_size=20).filter(lambda text: text.isprintable()))
    messages = sent(PROPOSAL, round, bodies)
    check_no_abort(messages)
    messages[culprit] = abort_message(reason)
    said = f"^{re.escape(f'rank {culprit} failed: {reason}')}$"
    for check in (check_no_abort, lambda m: open_all(m, PROPOSAL, round, rank=0, epoch=3)):
        with pytest.raises(PeerError, match=said):
            check(messages)
    messages[culprit] = b""
    check_no_abort(messages)
    with pytest.raises(PeerError, match=f"rank {culprit} left epoch 3 early"):
        open_all(messages, PROPOSAL, round, rank=0, epoch=3)


@given(BODIES, KINDS, KINDS, ROUNDS, ROUNDS, st.data())
def test_a_rank_elsewhere_is_named_with_both_places(bodies, kind, other, round, elsewhere, data):
    if kind == other and (round == elsewhere or kind == HELLO):
        return
    culprit = data.draw(st.integers(0, len(bodies) - 1))
    messages = sent(kind, round, bodies)
    messages[culprit] = encode(other, bodies[culprit], rank=culprit, round=elsewhere)
    names = {HELLO: "hello", PROPOSAL: "proposal", RECEIPT: "receipt"}
    message = (
        f"rank {culprit} sent a {names[other]} of round {elsewhere} where rank 5 is at the "
        f"{names[kind]} of round {round};"
    )
    with pytest.raises(MismatchError, match=message):
        open_all(messages, kind, round, rank=5, epoch=0)
