"""A training job on the simulated machine: ranks that train, save, are killed, and resume."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import simulated_processes
from choices import Choices
from simulated_distributed import Network
from simulated_world import Process, World, current, stack_of

import evenstep
from evenstep.errors import EvenstepError
from evenstep.plan import FixedBatch, Policy
from evenstep.plan.policies.pool_sort import PoolSort
from evenstep.plan.rng import generator

POLICIES: Mapping[str, Policy] = {
    "fixed": FixedBatch(3),
    "budget": evenstep.TokenBudget(40),
    "even": evenstep.Even(40),
    "pool": PoolSort(3),
}
ERRORS = {
    "raises": ValueError("damaged"),
    "exits": SystemExit(3),
    "cancels": KeyboardInterrupt("by the user's own code"),
}


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
class Fault:
    """At a process's step number `step`, it is killed, stopped, delayed or refused something."""

    kind: str
    process: str
    step: int
    seconds: float = 0.0


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

    def __getitem__(self, index: int) -> dict[str, int]:
        spend(self._slow)
        if index == self.setup.bad_sample:
            raise ERRORS[self.setup.error]
        return {"index": index, "length": self.lengths[index]}


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
                raise ERRORS[self.setup.error]
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
            raise ERRORS[self.error]
        return indices, bytes(self.weight)


def length_of(sample: dict[str, int]) -> int:
    return sample["length"]


def spend(slow: bool) -> None:
    """Takes some time, or none."""
    world = current().process.world
    if slow and (choice := world.choices.pick(6, dull=0.6)):
        world.sleep((0.001, 0.01, 0.05, 0.3, 1.1)[choice - 1])


@dataclass
class Report:
    """What one rank did in a run."""

    steps: list[tuple[int, int, tuple[int, ...], tuple[int, ...]]] = field(default_factory=list)
    """(epoch, step, own samples, all ranks' numbers of samples)."""
    error: BaseException | None = None
    finished: bool = False
    left: bool = False
    ended_at: float = 0.0
    lingering: list[str] = field(default_factory=list)
    saved: dict[int, tuple[str, int]] = field(default_factory=dict)
    """State and length of `steps`, by number of checkpoint."""

    def save(self, loader: evenstep.DataLoader) -> None:
        self.saved[len(self.saved) + 1] = json.dumps(loader.state_dict()), len(self.steps)


class Attempt:
    """Runs a `Run`."""

    def __init__(
        self, setup: Setup, run: Run, choices: Choices, states: list[str], *, merged: bool
    ) -> None:
        """
        Args:
            states: to resume from; empty at the beginning.
        """
        self.setup, self.settings, self.states, self.merged = setup, run, states, merged
        self._stopped = sum(fault.seconds for fault in run.faults)
        self.world = World(choices, seconds=60 + 3 * self._stopped)
        self.world.capacity = run.capacity
        self.world.begun = self._plan_faults
        self.injected: list[tuple[str, float]] = []
        self._faults = list(run.faults)
        self.reports = [Report() for _ in range(run.ranks)]
        self.ranks = [
            simulated_processes.start_process(
                self.world, f"rank{rank}", lambda rank=rank: self._train(rank), None
            )
            for rank in range(run.ranks)
        ]
        for rank, process in enumerate(self.ranks):
            process.rank, process.world_size = rank, run.ranks
        if run.ranks > 1:
            self.world.network = Network(self.world, self.ranks)

    def _plan_faults(self, process: Process) -> None:
        for fault in [f for f in self._faults if f.process == process.name]:
            self._faults.remove(fault)
            process.faults[fault.step] = lambda process, fault=fault: self._inject(process, fault)

    def _inject(self, process: Process, fault: Fault) -> None:
        self.injected.append((f"{fault.kind} {fault.process}", self.world.now))
        if fault.kind == "kill":
            self.world.exit(process, -9)
        elif fault.kind == "stop":
            self.world.stop(process, fault.seconds)
        elif fault.kind == "delay":
            self.world.sleep(fault.seconds)
        else:
            process.fails[fault.kind] = Injected(f"{process.name}: no memory that {fault.kind}")

    def _loader(self) -> evenstep.DataLoader:
        setup, run = self.setup, self.settings
        order: dict[str, Any] = {"shuffle": setup.shuffle}
        if setup.bad_order is not None:
            order = {"sampler": Order(setup), "shard_sampler": True}
        workers = {}
        if run.workers:
            workers = {
                "persistent_workers": run.persistent,
                "multiprocessing_context": run.method,
                "timeout": run.timeout,
            }
        return evenstep.DataLoader(
            Samples(setup, run.slow),
            policy=POLICIES[setup.policy],
            collate_fn=Collate(setup.bad_batch, setup.error, run.slow, 1 << 17 if run.heavy else 0),
            length_fn=length_of,
            num_workers=run.workers,
            prefetch=run.prefetch,
            collate_threads=run.threads,
            buffer_size=setup.buffer_size,
            accumulate=setup.accumulate,
            chunk_size=setup.chunk_size,
            skip_bad_samples=setup.skips,
            loss_scaling="sample",
            **order,
            **workers,
        )

    def _train(self, rank: int) -> None:
        report, world = self.reports[rank], self.world
        loader = self._loader()
        try:
            if self.states:
                states = [json.loads(state) for state in self.states]
                whole = evenstep.merge_states(states) if self.merged else states[rank]
                loader.load_state_dict(whole)
            self._epochs(loader, rank, report)
        except (EvenstepError, Injected) as error:
            report.error = error
        report.ended_at = world.now
        loader.close()
        main = current()
        others = [fiber for fiber in main.process.fibers if fiber is not main]
        for fiber in others:
            world.until(
                lambda fiber=fiber: not fiber.alive, fiber.joined, timeout=8 + self._stopped
            )
        report.lingering = [f"{f.name}\n{stack_of(f)}" for f in others if f.alive]

    def _epochs(self, loader: evenstep.DataLoader, rank: int, report: Report) -> None:
        run = self.settings
        leaves = run.leaves if run.who_leaves in (None, rank) else None
        while loader.epoch < self.setup.epochs:
            steps = loader.steps()
            for (indices, _), step in steps:
                report.steps.append(
                    (
                        step.epoch,
                        step.step,
                        tuple(indices) if not step.filler else (),
                        tuple(step.totals.samples.tolist()),
                    )
                )
                spend(run.slow)
                if leaves is not None and len(report.steps) >= leaves:
                    break
                if len(report.steps) % run.saves == 0:
                    report.save(loader)
            else:
                report.save(loader)
                continue
            self._leave(loader, steps, report)
            if run.how != "again":
                report.left = True
                return
            leaves = None
        report.finished = True

    def _leave(self, loader: evenstep.DataLoader, steps: Any, report: Report) -> None:
        if self.settings.how == "close":
            steps.close()
        if self.settings.who_leaves is None:
            report.save(loader)
        if self.settings.how == "again":
            loader.load_state_dict(json.loads(report.saved[len(report.saved)][0]))
