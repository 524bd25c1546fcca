"""Messages: what goes in comes out, and a wrong one names what differs and whose it is."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenstep.errors import MismatchError, PeerError
from evenstep.protocol.wire import (
    HELLO,
    PROPOSAL,
    RECEIPT,
    ProposalHead,
    abort_message,
    check_no_abort,
    compare_hellos,
    decode_proposal,
    decode_receipt,
    encode,
    encode_hello,
    encode_proposal,
    encode_receipt,
    open_all,
)

KINDS = st.sampled_from([HELLO, PROPOSAL, RECEIPT])
ROUNDS = st.integers(0, 2**32 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
LEFT = st.integers(-1, 2**40)
BODIES = st.lists(st.binary(max_size=40), min_size=1, max_size=16)
VALUES = st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=8))
COMPARED = st.dictionaries(
    st.text(min_size=1, max_size=8).filter(lambda key: key != "protocol"), VALUES, max_size=5
)


def opened(kind, round, bodies):
    return open_all([encode(kind, round, body) for body in bodies], kind, round, rank=0, epoch=0)


@given(KINDS, ROUNDS, BODIES)
def test_bodies_come_out_as_they_went_in(kind, round, bodies):
    assert [bytes(body) for body in opened(kind, round, bodies)] == bodies


@given(ROUNDS, st.booleans(), st.booleans(), st.tuples(*[INT64] * 4), st.binary(max_size=64))
def test_a_proposal_comes_out_as_it_went_in(round, finished, lacks, numbers, message):
    head = ProposalHead(finished, lacks, *numbers)
    (body,) = opened(PROPOSAL, round, [encode_proposal(head, message)])
    got, rest = decode_proposal(body)
    assert got == head
    assert bytes(rest) == message


@given(ROUNDS, LEFT, st.binary(max_size=64), st.binary(max_size=64))
def test_a_receipt_comes_out_as_it_went_in(round, left, totals, lent):
    (body,) = opened(RECEIPT, round, [encode_receipt(left, totals, lent)])
    got = decode_receipt(body)
    assert (got.left, bytes(got.totals), got.lent) == (left, totals, lent)


@given(COMPARED, st.lists(LEFT, min_size=1, max_size=16), st.randoms(use_true_random=False))
def test_hellos_that_agree_tell_what_every_rank_has_left(compared, left, random):
    hellos = []
    for number in left:
        items = list(compared.items())
        random.shuffle(items)  # the order in which a rank names things means nothing
        hellos.append(encode_hello(dict(items), number))
    assert compare_hellos(opened(HELLO, 0, hellos)) == left


@settings(max_examples=120)
@given(COMPARED, st.integers(2, 16), st.text(min_size=1, max_size=8), VALUES, VALUES, st.data())
def test_hellos_that_differ_name_the_key_and_the_ranks(compared, world, key, usual, odd, data):
    if usual == odd or key == "protocol":
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


def test_a_key_that_a_rank_does_not_know_is_named():
    hellos = [memoryview(encode_hello(compared, 0)) for compared in ({}, {"dataset size": 7})]
    said = "ranks differ in dataset size: rank 0 has None, rank 1 has 7"
    with pytest.raises(MismatchError, match=said):
        compare_hellos(hellos)


def test_hellos_of_other_versions_are_refused_by_version():
    mine = encode_hello({}, 0)
    theirs = re.sub(rb'"protocol": \d+', b'"protocol": 0', mine)
    assert theirs != mine
    with pytest.raises(MismatchError, match=r"ranks differ in protocol: rank 0 has \d+, rank 1"):
        compare_hellos([memoryview(mine), memoryview(theirs)])


def test_hellos_of_other_rounds_are_left_to_be_compared():
    """So that the error names the round of each rank, not a mix-up of loaders."""
    hellos = [encode(HELLO, r, encode_hello({"round to begin with": r}, 0)) for r in (4, 9)]
    for rank in range(2):
        bodies = open_all(hellos, HELLO, (4, 9)[rank], rank=rank, epoch=0)
        said = "ranks differ in round to begin with: rank 0 has 4, rank 1 has 9"
        with pytest.raises(MismatchError, match=said):
            compare_hellos(bodies)


@given(BODIES, ROUNDS, st.data())
def test_an_abort_or_a_rank_that_left_is_named(bodies, round, data):
    culprit = data.draw(st.integers(0, len(bodies) - 1))
    reason = data.draw(st.text(max_size=20).filter(lambda text: text.isprintable()))
    messages = [encode(PROPOSAL, round, body) for body in bodies]
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
    messages = [encode(kind, round, body) for body in bodies]
    messages[culprit] = encode(other, elsewhere, bodies[culprit])
    names = {HELLO: "hello", PROPOSAL: "proposal", RECEIPT: "receipt"}
    message = (
        f"rank {culprit} sent a {names[other]} of round {elsewhere} where rank 5 is at the "
        f"{names[kind]} of round {round};"
    )
    with pytest.raises(MismatchError, match=message):
        open_all(messages, kind, round, rank=5, epoch=0)
