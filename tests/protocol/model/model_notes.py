"""What must be the same in every interleaving and after every resume."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from model_events import Violation
from model_job import Job

from evenstep.batch.step_info import StepInfo
from evenstep.loader.batcher.batcher_messages import StepProgress
from evenstep.loader.resume.epoch_cursor import EpochStart
from evenstep.loader.resume.epoch_progress import EpochProgress


@dataclass
class Notes:
    """All of it, as it was first seen."""

    own: dict[tuple[int, int], Any] = field(default_factory=dict)
    """By rank and step, the samples of each micro-batch."""
    common: dict[int, Any] = field(default_factory=dict)
    """By step, what all ranks know of it."""
    states: dict[tuple[int, int], str] = field(default_factory=dict)
    """By rank and step, the checkpoint made after it."""
    count: dict[str, int] = field(default_factory=dict)
    """The number of steps, once an epoch has ended."""
    messages: dict[tuple[int, int], bytes] = field(default_factory=dict)
    """By rank and exchange."""
    progress: dict[tuple[int, int], EpochProgress] = field(default_factory=dict)
    """By rank and number of steps, where its trainer is."""
    lenders: dict[int, int] = field(default_factory=dict)
    """By round, the rank that lends a sample."""
    job: Job | None = None

    def begin(self, job: Job, starts: Sequence[EpochStart]) -> Notes:
        """For a job that begins, or resumes this one: all is to be the same, but exchanges are
        counted anew."""
        progress = {(one.rank, one.progress.step): one.progress for one in starts}
        return Notes(self.own, self.common, self.states, self.count, {}, progress, {}, job)

    def message(self, rank: int, exchange: int, message: bytes) -> None:
        _note(self.messages, (rank, exchange), message, f"message {exchange} of rank {rank}")

    def step(
        self, rank: int, info: StepInfo, progress: StepProgress, own: Any, common: Any
    ) -> None:
        assert self.job is not None
        index = info.step
        after = self.progress[rank, index].after(info, progress, iterable=False)
        self.progress[rank, index + 1] = after
        state = self.job.state(after, rank)
        _note(self.own, (rank, index), own, f"step {index} of rank {rank}")
        _note(self.common, index, common, f"what ranks know of step {index}")
        _note(
            self.states, (rank, index), state, f"the checkpoint of rank {rank} after step {index}"
        )

    def steps(self, rank: int, count: int) -> None:
        _note(self.count, "", count, "the number of steps")

    def lender(self, rank: int, round: int) -> None:
        _note(self.lenders, round, rank, f"who lends in round {round}")


def _note(known: dict[Any, Any], key: Any, value: Any, what: str) -> None:
    first = known.setdefault(key, value)
    if first != value:
        raise Violation(f"{what} is not always the same: {first!r} and {value!r}")
