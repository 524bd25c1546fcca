"""Messages: what goes in comes out, and a wrong one names what is wrong and whose it is."""

from __future__ import annotations

import re
import struct
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenstep.errors import DamagedMessageError, MismatchError, PeerError
from evenstep.protocol.bodies import (
    HELLO_LAYOUT,
    MOST,
    PROPOSAL_LAYOUT,
    RECEIPT_LAYOUT,
    ProposalHead,
    compare_hellos,
    decode_proposals,
    decode_receipts,
    encode_hello,
    encode_proposal,
    encode_receipt,
)
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
WINDOW, LONGEST = 50, 100


def sent(kind, round, bodies):
    return [encode(kind, body, rank=rank, round=round) for rank, body in enumerate(bodies)]


def opened(kind, round, bodies):
    return open_all(sent(kind, round, bodies), kind, round, rank=0, epoch=0)


def proposals(bodies):
    return decode_proposals(
        [memoryview(body) for body in bodies], round=7, window=WINDOW, longest=LONGEST
    )


def receipts(bodies, lender=None):
    return decode_receipts([memoryview(body) for body in bodies], round=7, lender=lender)


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
    longest, fits = draw(st.integers(samples > 0, LONGEST)), draw(st.integers(0, MOST - 1))
    ratios = draw(st.integers(0, MOST - 1)), draw(st.integers(0, MOST - 1))
    head = ProposalHead(
        not samples, lacks, samples, supervised, tokens, room, *shown, longest, fits, ratios
    )
    row = st.lists(st.integers(-(2**63), 2**63 - 1), min_size=numbers, max_size=numbers)
    return head, np.array(draw(row) if samples else [0] * numbers, np.int64)


@given(st.integers(0, 5).flatmap(lambda k: st.lists(proposal(k), min_size=1, max_size=6)))
def test_proposals_come_out_as_they_went_in(given):
    bodies = [
        encode_proposal(head, message[: 0 if head.finished else None]) for head, message in given
    ]
    heads, numbers = proposals(bodies)
    *columns, ratios = [getattr(heads, name).tolist() for name in ProposalHead._fields]
    assert list(zip(*columns, map(tuple, ratios))) == [head for head, _ in given]
    for got, (head, message) in zip(numbers, given):
        assert head.finished or got.tolist() == message.tolist()
        assert not head.finished or not got.any()


@given(LEFT, st.binary(max_size=64), st.binary(max_size=64))
def test_receipts_come_out_as_they_went_in(left, totals, lent):
    got = receipts([encode_receipt(left, totals, lent)], lender=0)
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


def test_a_message_can_be_made_from_what_the_head_says():
    """With nothing of evenstep's."""

    def message(length: int) -> bytes:
        rest = struct.pack("<III", length, 0, 7) + b"abc"
        checksum = zlib.crc32(b"ev\x07P" + rest)
        return b"ev\x07P" + struct.pack("<I", checksum) + rest

    assert message(23) == encode(PROPOSAL, b"abc", rank=0, round=7)
    with pytest.raises(DamagedMessageError, match="it has 23 bytes of 24"):
        open_all([message(24)], PROPOSAL, 7, rank=0, epoch=0)


JSON = [b"", b"{", b"[]", b"\xff\xfe", b"[" * 100_000, b'{"a": NaN', b"9" * 5000]


@pytest.mark.parametrize("text", JSON, ids=range(len(JSON)))
def test_a_hello_that_is_no_json_object_is_damaged(text):
    good = memoryview(encode_hello({"seed": 0}, 3))
    for culprit in range(2):
        hellos = [good, good]
        hellos[culprit] = memoryview(HELLO_LAYOUT.pack(3) + text)
        with pytest.raises(DamagedMessageError, match=f"rank {culprit} sent a damaged hello"):
            compare_hellos(hellos)


@pytest.mark.parametrize("left", [-2, MOST, -(2**63)])
def test_impossible_numbers_of_samples_left_are_refused(left):
    good, wrong = encode_hello({}, 3), encode_hello({}, left)
    with pytest.raises(DamagedMessageError, match=f"rank 1 .* hello of round 0: {left:,} samples"):
        compare_hellos([memoryview(good), memoryview(wrong)])
    with pytest.raises(DamagedMessageError, match=f"rank 0 .* of round 7: {left:,} samples left"):
        receipts([encode_receipt(left, b"", b"")])


GOOD = ProposalHead(False, False, 10, 5, 40, 0, longest=4)
USUAL = (0, 0, 0, 0, 0, 0, 4, 0, 0, 0)


@pytest.mark.parametrize(
    ("flags", "counts", "said"),
    [
        ((2, 0), (0, 0, 0, 0), "its flags are 2 and 0"),
        ((0, 1), (10, 5, 40, 0), "lacks=True"),
        ((1, 0), (10, 5, 40, 0), "finished=True"),
        ((0, 0), (0, 0, 0, 0), "finished=False"),
        ((0, 0), (-1, 0, 0, 0), "-1 samples in a window of at most 50"),
        ((0, 0), (51, 0, 51, 0), "51 samples in a window of at most 50"),
        ((0, 0), (10, 0, 9, 0), "9 tokens in 10 samples of 1 to 100"),
        ((0, 0), (10, 0, 1001, 0), "1,001 tokens in 10 samples of 1 to 100"),
        ((0, 0), (10, -1, 40, 0), "-1 supervised tokens"),
        ((0, 0), (10, MOST, 40, 0), "9,007,199,254,740,992 supervised tokens"),
        ((0, 0), (10, 5, 40, -1), "room for -1 samples"),
        ((0, 0), (10, 5, 40, 0, 11), "labels of 11 and 0 samples show"),
        ((0, 0), (10, 5, 40, 0, 0, -1), "labels of 0 and -1 samples show"),
        ((0, 0), (10, 5, 40, 0, 0, 0, 0), "a longest sample of 0 tokens, where 100"),
        ((0, 0), (10, 5, 40, 0, 0, 0, 101), "a longest sample of 101 tokens, where 100"),
        ((0, 0), (10, 5, 40, 0, 0, 0, 4, -1), "groups of -1 tokens that fit"),
        (
            (0, 0),
            (10, 5, 40, 0, 0, 0, 4, 0, -1),
            r"pairs of tokens and patches that cost \[-1, 0\]",
        ),
        ((0, 0), (10, 5, 40, 0, 0, 0, 4, 0, 0, MOST), r"that cost \[0, 9007199254740992\]"),
    ],
)
def test_a_proposal_of_what_cannot_be_is_refused(flags, counts, said):
    numbers = np.zeros(2, np.int64)
    good = encode_proposal(GOOD, numbers)
    bad = PROPOSAL_LAYOUT.pack(*flags, *counts, *USUAL[len(counts) :]) + (
        b"" if flags[0] else bytes(16)
    )
    with pytest.raises(DamagedMessageError, match=f"rank 1 sent a damaged proposal .*{said}"):
        proposals([good, bad])


@pytest.mark.parametrize(
    ("size", "said"),
    [(3, "3 numbers of the policy, and that of rank 0 has 2"), (0, "0 numbers"), (1.5, "94 bytes")],
)
def test_a_proposal_of_another_size_is_refused(size, said):
    good, bare = (encode_proposal(GOOD, np.zeros(count, np.int64)) for count in (2, 0))
    with pytest.raises(DamagedMessageError, match=f"rank 1 sent .* of round 7: .*{said}"):
        proposals([good, bare + bytes(int(8 * size))])
    with pytest.raises(DamagedMessageError, match="has 81 bytes"):
        proposals([good, bare[:-1]])
    finished = ProposalHead(True, False, 0, 0, 0, 0)
    with pytest.raises(DamagedMessageError, match="2 numbers of no policy"):
        proposals([encode_proposal(finished, np.zeros(2, np.int64))])


@pytest.mark.parametrize(
    "body",
    [
        bytes(RECEIPT_LAYOUT.size - 1),
        RECEIPT_LAYOUT.pack(3, 13) + bytes(12),
        RECEIPT_LAYOUT.pack(3, 2**32 - 1) + bytes(12),
        encode_receipt(3, bytes(12), b"lent unasked"),
    ],
)
def test_a_receipt_of_another_size_is_refused(body):
    good = encode_receipt(3, bytes(12), b"")
    with pytest.raises(DamagedMessageError, match="rank 1 sent a damaged receipt of round 7: its"):
        receipts([good, body], lender=0)
