"""Damage to any message at any point of an epoch: one clear error, never another.

A rank's message is damaged in all ranks' copies, as every rank sees the same bytes, or in one copy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenstep.errors import DamagedMessageError, EvenstepError, MismatchError, PeerError
from evenstep.plan import Even
from evenstep.protocol import EpochOptions, RankProtocol
from evenstep.protocol.wire import abort_message, check_no_abort
from evenstep.tools.simulate.rank import SimulatedRank
from worlds import POLICIES


@dataclass
class Job:
    """Ranks that exchange messages until one of them raises."""

    ranks: list[SimulatedRank]
    history: list[list[bytes]] = field(default_factory=list)
    """All ranks' messages of each exchange."""

    @property
    def finished(self) -> bool:
        return self.ranks[0].protocol.finished

    def messages(self) -> list[bytes]:
        for rank in self.ranks:
            rank.fill()
            if rank.protocol.lends is not None:
                rank.protocol.lending.lent = b"a sample"
        self.history.append([rank.outgoing() for rank in self.ranks])
        return self.history[-1]

    def exchange(self) -> None:
        messages = self.messages()
        for rank in self.ranks:
            rank.incoming(messages)

    def errors(self, copies: Sequence[Sequence[bytes]]) -> list[EvenstepError | None]:
        """What each rank raises for its copy of all messages."""
        return [raised(lambda r=r, c=c: r.incoming(c)) for r, c in zip(self.ranks, copies)]


def raised(work: Callable[[], object]) -> EvenstepError | None:
    try:
        work()
    except EvenstepError as error:
        return error
    return None


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    """An epoch that has come to any exchange."""
    shards = draw(
        st.lists(st.lists(st.integers(1, 30), max_size=12), min_size=2, max_size=3).filter(any)
    )
    dealt = draw(st.booleans())
    policy = Even(draw(st.integers(30, 90))) if dealt else draw(POLICIES)
    knows, exhausted = draw(st.booleans()), draw(st.sampled_from(["pad", "stop"]))
    stream = np.concatenate([np.array(shard, np.int64) for shard in shards])
    buffer_size = draw(st.integers(1, 6) | st.just("auto"))
    ranks = [
        SimulatedRank(
            RankProtocol(
                EpochOptions(
                    policy=policy,
                    world_size=len(shards),
                    buffer_size=buffer_size,
                    exhausted=exhausted,
                    others={"dataset size": len(stream)},
                ),
                rank=rank,
                share=len(shard) if knows else None,
                entries=len(stream) if dealt else None,
            ),
            np.array([] if dealt else shard, np.int64),
            stream if dealt else None,
        )
        for rank, shard in enumerate(shards)
    ]
    job = Job(ranks)
    for _ in range(draw(st.integers(0, 8))):
        job.exchange()
        if job.finished:
            return draw(st.nothing())
    return job


@st.composite
def damages(draw: st.DrawFn, job: Job, culprit: int) -> bytes:
    """What may arrive in place of a rank's message."""
    messages = job.messages()
    whole = messages[culprit]
    others = [m for n, all_ in enumerate(job.history) for r, m in enumerate(all_)]
    place = draw(st.integers(0, len(whole) - 1))
    how = draw(st.integers(0, 4))
    if how == 0:
        flipped = bytearray(whole)
        for _ in range(draw(st.integers(1, 4))):
            flipped[draw(st.integers(0, len(whole) - 1))] ^= 1 << draw(st.integers(0, 7))
        return bytes(flipped)
    if how == 1:
        return whole[:place]
    if how == 2:
        return whole + draw(st.binary(min_size=1, max_size=9))
    if how == 3:
        return whole[: place % 5] + draw(st.binary(max_size=60))
    return draw(st.sampled_from(others))  # another rank's, of another kind or round


@given(st.data())
def test_damage_in_all_copies_is_one_error_on_all_ranks_that_names_the_sender(data):
    job = data.draw(jobs())
    culprit = data.draw(st.integers(0, len(job.ranks) - 1))
    arrived = data.draw(damages(job, culprit))
    messages = list(job.history[-1])
    if arrived == messages[culprit]:
        return
    messages[culprit] = arrived
    errors = job.errors([messages] * len(job.ranks))
    assert len({type(error) for error in errors}) == 1
    for error in errors:
        assert isinstance(error, (PeerError, MismatchError))
        assert f"rank {culprit} " in str(error)


@settings(max_examples=20)
@given(st.data())
def test_damage_in_one_copy_reaches_the_others_by_an_abort(data):
    job = data.draw(jobs())
    count = len(job.ranks)
    culprit, victim = (data.draw(st.integers(0, count - 1)) for _ in range(2))
    arrived = data.draw(damages(job, culprit))
    good = list(job.history[-1])
    if arrived == good[culprit]:
        return
    copies = [list(good) for _ in range(count)]
    copies[victim][culprit] = arrived
    first = job.errors(copies)
    assert [error is not None for error in first] == [rank == victim for rank in range(count)]
    told = isinstance(first[victim], PeerError) and not isinstance(
        first[victim], DamagedMessageError
    )
    if told:
        return  # a copy that was cut to nothing looks like a rank that left
    abort = abort_message(str(first[victim]))
    for number, rank in enumerate(job.ranks):
        if number == victim:
            continue
        messages = [abort if r == victim else b"" for r in range(count)]
        with pytest.raises(PeerError, match=f"rank {victim} failed: .*rank {culprit} "):
            check_no_abort(messages) if rank.protocol.finished else rank.incoming(messages)
