"""Ranks whose messages are damaged on their way: in all copies, in one, or by a rank that lies."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from ranks import Job, Rank

import evenstep
from documents import Documents
from evenstep.loader.transport.session import Session

WITHIN = 30.0


def damaged(message: bytes) -> bytes:
    return message[:-1] + bytes([message[-1] ^ 1]) if message else message


def trains(rank: Rank, at: int, victims: Sequence[int], change) -> None:
    """Rank 1's message number `at` arrives changed at the victims."""
    reply, exchanges = Session.reply, iter(range(10**6))

    def changed(session: Session, messages: Sequence[bytes]) -> None:
        if next(exchanges) == at and rank.rank in victims:
            messages = [messages[0], change(messages[1])]
        reply(session, messages)

    Session.reply = changed  # type: ignore[method-assign]
    dataset, policy = Documents(200), evenstep.TokenBudget(max_tokens=1024)
    for _ in evenstep.DataLoader(dataset, policy=policy, memory=evenstep.Memory(buffer_size=16)):
        pass


@pytest.mark.parametrize(
    ("at", "kind", "change", "victims"),
    [
        (0, "account of the job of round 0", damaged, (0, 1)),
        (1, "hello of round 0", damaged, (0, 1)),
        (4, "proposal of round 1", damaged, (0,)),
        (5, "receipt of round 1", damaged, (1,)),
    ],
)
def test_damage_is_named_by_every_rank(tmp_path: Path, victims, at, kind, change) -> None:
    with Job(trains, 2, at, victims, change, folder=tmp_path) as job:
        outcomes = job.join(WITHIN)
    said = f"rank 1 sent a damaged {kind}: "
    for number, outcome in enumerate(outcomes):
        if number in victims:
            assert outcome.error == "DamagedMessageError", outcome.traceback
            assert outcome.message.startswith(said)
        else:
            assert outcome.error == "PeerError", outcome.traceback
            (victim,) = victims
            assert outcome.message.startswith(f"rank {victim} failed: DamagedMessageError: {said}")
