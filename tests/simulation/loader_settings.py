"""What a simulated job trains on, and what happens to it: numbers and names, and what they mean."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from processes import Fault
from simulated_torch_loader import worker_info
from simulated_world import current
from torch.utils.data import IterableDataset

import evenstep
from evenstep.plan import FixedBatch, Policy
from evenstep.plan.policies.pool_sort import PoolSort
from evenstep.plan.rng import generator

POLICIES: Mapping[str, Policy] = {
    "fixed": FixedBatch(3),
    "budget": evenstep.TokenBudget(40),
    "even": evenstep.Even(40),
    "pool": PoolSort(3),
}
CONTEXT_POLICY = evenstep.WorkloadPacking(40, micro_batches=1, context_parallel=2)
_ERRORS: dict[str, tuple[type[BaseException], Any]] = {
    "raises": (ValueError, "damaged"),
    "exits": (SystemExit, 3),
    "cancels": (KeyboardInterrupt, "by the user's own code"),
}


def error_of(name: str) -> BaseException:
    """A new one each time: the traceback of one that is kept would keep a whole history."""
    kind, argument = _ERRORS[name]
    return kind(argument)


class Injected(MemoryError, RuntimeError):
    """What Python raises where memory or threads run out."""


@dataclass(frozen=True)
class Setup:
    """What all runs of a job have in common. It decides the plan."""

    policy: str = "fixed"
    samples: int = 24
    epochs: int = 1
    buffer_size: int = 6
    accumulate: int = 1
    chunk_size: int = 2
    shuffle: bool = True
    skips: int = 0
    bad_sample: int | None = None
    bad_batch: int | None = None
    """A sample whose batch cannot be collated."""
    bad_order: int | None = None
    """Indices after which the sampler raises."""
    error: str = "raises"
    iterable: str | None = None
    """How an iterable dataset resumes: it is read again ("replay"), or the "dataset" or its
    "iterator" has a state. None is a dataset with indices."""
    context: int = 1
    """Ranks that share every micro-batch."""

    @property
    def packs(self) -> bool:
        """Whether batches are packed rows of tokens."""
        return self.context > 1

    @property
    def fails(self) -> bool:
        """Whether the job cannot reach its end."""
        skipped = self.bad_sample is not None and self.skips > 0
        return (
            (self.bad_sample is not None and not skipped)
            or self.bad_batch is not None
            or self.bad_order is not None
        )


@dataclass(frozen=True)
class Run:
    """One attempt at the job."""

    ranks: int = 2
    workers: int = 0
    prefetch: int = 2
    threads: int = 1
    persistent: bool = False
    method: str = "fork"
    capacity: int = 1 << 16
    """Bytes that pipes hold."""
    heavy: bool = False
    """Whether a batch is more than that."""
    saves: int = 3
    """Steps from one checkpoint to the next."""
    leaves: int | None = None
    """Steps after which ranks leave the pass."""
    who_leaves: int | None = None
    """The only rank that does; all when None."""
    how: str = "break"
    """... and what they do then: see `_leave`."""
    stays: float = 0.0
    """Seconds for which the process of a rank that has left goes on, without its loader."""
    apart: bool = False
    """Whether each rank is on a host of its own."""
    deaf: bool = False
    """Whether Gloo misses that connections were closed."""
    timeout: float = 0.0
    slow: bool = False
    """Whether samples, batches and training steps may take their time."""
    faults: tuple[Fault, ...] = ()


class Samples:
    """A sample is its index and its length."""

    def __init__(self, setup: Setup, slow: bool) -> None:
        self.setup, self._slow = setup, slow
        self.lengths = generator(setup.samples).integers(1, 30, setup.samples).tolist()

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> dict[str, Any]:
        spend(self._slow)
        if index == self.setup.bad_sample:
            raise error_of(self.setup.error)
        length = self.lengths[index]
        if self.setup.packs:
            return {"index": index, "input_ids": torch.full((length,), index)}
        return {"index": index, "length": length}


class Stream(IterableDataset):  # type: ignore[type-arg]
    """The samples, of which each rank and worker yields its own."""

    def __init__(self, setup: Setup, slow: bool) -> None:
        self._samples, self._setup = Samples(setup, slow), setup

    def __iter__(self) -> Iterator[dict[str, Any]]:
        process, info = current().process, worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        mine = range(len(self._samples))[process.rank :: process.world_size][worker::workers]
        return self._from(list(mine))

    def _from(self, mine: list[int]) -> Iterator[dict[str, Any]]:
        return (self._samples[index] for index in mine)


class StreamWithState(Stream):
    """Each iteration begins where the last state that was loaded says, as those of Hugging Face's
    datasets do."""

    _begin = _place = 0

    def _from(self, mine: list[int]) -> Iterator[dict[str, Any]]:
        for place in range(self._begin, len(mine)):
            self._place = place + 1
            yield self._samples[mine[place]]

    def state_dict(self) -> dict[str, int]:
        return {"place": self._place}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self._begin = self._place = state["place"]


class StreamOfIterators(Stream):
    """Its iterators have the state."""

    def _from(self, mine: list[int]) -> Iterator[dict[str, Any]]:
        return _Iterator(self._samples, mine)


class _Iterator(Iterator[dict[str, Any]]):
    def __init__(self, samples: Samples, mine: list[int]) -> None:
        self._samples, self._mine, self._place = samples, mine, 0

    def __next__(self) -> dict[str, Any]:
        if self._place == len(self._mine):
            raise StopIteration
        self._place += 1
        return self._samples[self._mine[self._place - 1]]

    def state_dict(self) -> dict[str, int]:
        return {"place": self._place}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self._place = state["place"]


def dataset_of(setup: Setup, slow: bool) -> Any:
    kinds = {"replay": Stream, "dataset": StreamWithState, "iterator": StreamOfIterators}
    return (Samples if setup.iterable is None else kinds[setup.iterable])(setup, slow)


class Order:
    """A sampler of the whole job's indices that may fail."""

    def __init__(self, setup: Setup) -> None:
        self.setup, self.epoch = setup, 0

    def __len__(self) -> int:
        return self.setup.samples

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        order = generator(self.epoch, 7).permutation(self.setup.samples).tolist()
        for number, index in enumerate(order):
            if number == self.setup.bad_order:
                raise error_of(self.setup.error)
            yield index


@dataclass(frozen=True)
class Collate:
    bad: int | None
    error: str
    slow: bool
    weight: int

    def __call__(self, samples: list[dict[str, int]]) -> tuple[list[int], bytes]:
        spend(self.slow)
        indices = [sample["index"] for sample in samples]
        if self.bad in indices:
            raise error_of(self.error)
        return indices, bytes(self.weight)


def length_of(sample: dict[str, Any]) -> int:
    return sample["length"] if "length" in sample else len(sample["input_ids"])


def spend(slow: bool) -> None:
    """Takes some time, or none."""
    world = current().process.world
    if slow and (choice := world.choices.pick(6, dull=0.6)):
        world.sleep((0.001, 0.01, 0.05, 0.3, 1.1)[choice - 1])
