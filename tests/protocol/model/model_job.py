"""A small job: what its ranks are built with, and where each begins, anew or from a checkpoint."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from evenstep.loader.resume.epoch_cursor import EpochStart
from evenstep.loader.resume.epoch_progress import EpochProgress
from evenstep.loader.resume.epochs import Epochs
from evenstep.loader.resume.state import LoaderState, merge_states, to_dict
from evenstep.plan import Policy


class Unsized:
    """The order of a sampler that does not know how many it will yield."""

    def __init__(self, order: Sequence[int]) -> None:
        self._order = order

    def __iter__(self) -> Iterator[int]:
        return iter(self._order)


@dataclass(frozen=True)
class Job:
    """The arguments of a loader, as far as the protocol depends on them."""

    policy: Policy
    lengths: tuple[int, ...]
    """Of each sample of the dataset."""
    name: str = ""
    ranks: int = 2
    orders: tuple[tuple[int, ...], ...] | None = None
    """By rank, the samples that its own sampler yields; None where the ranks share the dataset."""
    sized: bool = True
    """Whether those samplers know how many they yield."""
    buffer_size: int | str = 2
    memory: int = 1 << 30
    """Bytes that the samples of a rank may take; a token is 8."""
    exhausted: str = "pad"
    accumulate: int = 1
    bad: frozenset[int] = frozenset()
    """Samples that are skipped."""
    chunks: tuple[int, ...] = (1, 9)
    """How many samples may come at a time, as far as there are as many."""
    together: bool = False
    """Whether all ranks run out in the same round, so that none runs a filler."""
    longest_wait: int | None = None
    """Rounds that a sample may be in the window of and not planned."""

    def epochs(self, rank: int) -> Epochs:
        sampler: Any = None
        if self.orders is not None:
            sampler = self.orders[rank] if self.sized else Unsized(self.orders[rank])
        return Epochs(
            dataset=range(len(self.lengths)),
            policy=self.policy,
            iterable=False,
            sampler=sampler,
            shard_sampler=False,
            shuffle=False,
            seed=0,
            drop_last=False,
        )

    def starts(self, progress: Sequence[EpochProgress] | None = None) -> list[EpochStart]:
        """Where each rank begins: at the beginning of the epoch, or where its progress is."""
        starts = []
        for rank in range(self.ranks):
            epochs = self.epochs(rank)
            one = progress[rank] if progress else epochs.begin(0)
            starts.append(
                EpochStart(
                    progress=one,
                    rank=rank,
                    world_size=self.ranks,
                    share=epochs.share(one, rank, self.ranks),
                    dataset_moved=False,
                )
            )
        return starts

    def state(self, progress: EpochProgress, rank: int) -> str:
        """A checkpoint of one rank, as text."""
        built = {
            "world_size": self.ranks,
            "buffer_size": self.buffer_size,
            "accumulate": self.accumulate,
            "iterable": None,
        }
        return json.dumps(to_dict(built, progress, rank))

    def resumed(self, states: Sequence[str]) -> list[EpochStart]:
        """The same ranks, each from its own state."""
        read = [LoaderState.read(json.loads(state)) for state in states]
        return self.starts([one.progress(rank, self.ranks) for rank, one in enumerate(read)])

    def resharded(self, states: Sequence[str], ranks: int) -> tuple[Job, list[EpochStart]]:
        """Any number of ranks, from the states of all."""
        merged = LoaderState.read(merge_states([json.loads(state) for state in states]))
        job = replace(self, name=f"{self.name}, then {ranks} ranks", ranks=ranks)
        return job, job.starts([merged.progress(rank, ranks) for rank in range(ranks)])

    def rewindowed(self, states: Sequence[str], buffer_size: int) -> tuple[Job, list[EpochStart]]:
        """The same ranks with windows of another size."""
        read = [LoaderState.read(json.loads(state)) for state in states]
        progress = [
            one.progress(rank, self.ranks).with_new_windows() for rank, one in enumerate(read)
        ]
        job = replace(
            self, name=f"{self.name}, then windows of {buffer_size}", buffer_size=buffer_size
        )
        return job, job.starts(progress)

    def shares(self) -> Counter[int]:
        """How often each sample that is not bad is to be trained on: once, but for the few that
        are repeated where ranks with fixed shares get equally many."""
        count = len(self.lengths)
        if self.orders is not None:
            drawn = [index for order in self.orders for index in order]
        elif self.policy.deals_on_demand or not count:
            drawn = list(range(count))
        else:
            drawn = [entry % count for entry in range(-(-count // self.ranks) * self.ranks)]
        return Counter(index for index in drawn if index not in self.bad)
