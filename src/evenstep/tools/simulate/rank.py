"""One rank of a simulated epoch: the loader's protocol, over lengths alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.plan.groups import Groups
from evenstep.protocol import RankProtocol
from evenstep.protocol.planned_step import PlannedStep
from evenstep.protocol.wire import Exchanged


class SimulatedRank:
    """One rank: its protocol, its shard, and the steps made so far."""

    def __init__(
        self, protocol: RankProtocol, lengths: Int64Array, stream: Int64Array | None = None
    ) -> None:
        """
        Args:
            lengths: [samples] of its share, where that is fixed; or [4, samples] of these the
                lengths, patches, images and patch pairs.
            stream: the same of the stream that all ranks share, where samples are dealt on demand.
        """
        self.protocol = protocol
        self.rows: Int64Array = np.atleast_2d(lengths)
        """[1 or 4, samples] by arrival number; samples dealt on demand are appended."""
        self.entries = np.empty(0, np.int64)
        """[samples] where dealt on demand: position in the stream of each."""
        self._stream = None if stream is None else np.atleast_2d(stream)
        self.arrival_steps = np.zeros(self.rows.shape[1], np.int64)
        self.steps: list[PlannedStep] = []

    def fill(self) -> None:
        protocol = self.protocol
        if self._stream is not None and (new := protocol.newly_dealt()) is not None:
            self.entries = np.concatenate([self.entries, new])
            self.rows = np.concatenate([self.rows, self._stream[:, new]], axis=1)
            self.arrival_steps = np.concatenate([self.arrival_steps, np.zeros_like(new)])
        while protocol.wanted:
            begin = protocol.received
            new = self.rows[:, begin : begin + protocol.wanted]
            if not new.size:
                protocol.end_of_source()
                return
            self.arrival_steps[begin : begin + new.shape[1]] = protocol.steps
            protocol.receive(np.concatenate([new[:1], new]).T)  # all tokens are supervised

    @property
    def lengths(self) -> Int64Array:
        """[samples] by arrival number."""
        lengths: Int64Array = self.rows[0]
        return lengths

    @property
    def vision(self) -> Int64Array | None:
        """[3, samples] patches, images and patch pairs; None where they are not known."""
        return self.rows[1:] if len(self.rows) > 1 else None

    def outgoing(self) -> bytes:
        return self.protocol.outgoing()

    def incoming(self, messages: Exchanged) -> None:
        self.steps += self.protocol.incoming(messages)

    @property
    def undelivered(self) -> int:
        """Samples left in the window, in the queue or in a fixed share when the epoch stopped."""
        return self.protocol.undelivered + len(self.lengths) - self.protocol.received

    def groups(self) -> tuple[Groups, Int64Array]:
        """Groups of arrival numbers, step after step, and the step that each belongs to."""
        pairs = [(group, step.index) for step in self.steps for group in step.micro_batches]
        members = [group for group, _ in pairs]
        offsets = np.cumsum([0, *map(len, members)])
        groups = Groups(np.concatenate([np.empty(0, np.int64), *members]), offsets)
        return groups, np.array([index for _, index in pairs], np.int64)


@dataclass(frozen=True, kw_only=True)
class SimulatedEpoch:
    """An epoch that all ranks have finished."""

    ranks: list[SimulatedRank]
    identities: Sequence[Int64Array]
    """For each rank, [samples] identity of each sample, by arrival number."""
    plan_seconds: float
    """Processor time in the policy, all ranks together."""

    def step(self, index: int) -> Int64Array:
        """Identities of the samples that all ranks together train on in a step."""
        return np.concatenate(
            [own[rank.steps[index].members] for rank, own in zip(self.ranks, self.identities)]
        )
