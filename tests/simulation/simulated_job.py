"""A training job on the simulated machine: ranks that train, save, are killed, and resume."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import simulated_processes
from histories import Choices
from loader_settings import (
    CONTEXT_POLICY,
    POLICIES,
    Collate,
    Injected,
    Order,
    Run,
    Setup,
    dataset_of,
    length_of,
    spend,
)
from processes import Fault, inject_faults
from simulated_distributed import Network
from simulated_world import Process, World, current, stack_of

import evenstep
from evenstep.batch import PackCollator
from evenstep.errors import EvenstepError
from evenstep.loader import dataloader
from evenstep.loader.batcher.batcher_messages import LoaderSpec
from evenstep.plan import Policy


class TwoCollate(LoaderSpec):
    """Two threads collate, as where a collate function makes images."""

    collate_threads = 2


LOST = "evenstep-lost"
"""The thread that keeps a collective which does not end."""


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
    tokens: list[list[int]] = field(default_factory=list)
    """By step, those of its shard, where ranks share micro-batches."""
    saved: dict[int, tuple[str, int]] = field(default_factory=dict)
    """State and length of `steps`, by number of checkpoint."""

    def save(self, loader: evenstep.DataLoader) -> None:
        self.saved[len(self.saved) + 1] = json.dumps(loader.state_dict()), len(self.steps)


def _refuse(process: Process, fault: Fault) -> None:
    process.fails[fault.kind] = Injected(f"{process.name}: no memory that {fault.kind}")


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
        dataloader.LoaderSpec = TwoCollate if run.threads == 2 else LoaderSpec
        self.injected = inject_faults(self.world, run.faults, _refuse)
        count = run.ranks * setup.context
        self.reports = [Report() for _ in range(count)]
        self.ranks = [
            simulated_processes.start_process(
                self.world, f"rank{rank}", lambda rank=rank: self._train(rank), None
            )
            for rank in range(count)
        ]
        for rank, process in enumerate(self.ranks):
            process.rank, process.world_size = rank, count
            process.host = f"node{rank}" if run.apart else "node0"
        if count > 1:
            self.world.network = Network(self.world, self.ranks)
            self.world.network.deaf = run.deaf

    def _loader(self) -> evenstep.DataLoader:
        setup, run = self.setup, self.settings
        options: dict[str, Any] = {"shuffle": setup.shuffle}
        faults: dict[str, Any] = {"skip_bad_samples": setup.skips}
        if setup.bad_order is not None:
            options = {"sampler": Order(setup), "shard_sampler": True}
        elif setup.iterable is not None:
            options, faults["replay"] = {}, setup.iterable == "replay"
        collate: Any = PackCollator()
        if not setup.packs:
            weight = 1 << 17 if run.heavy else 0
            collate = Collate(setup.bad_batch, setup.error, run.slow, weight)
        workers = {}
        if run.workers:
            workers = {
                "persistent_workers": run.persistent,
                "multiprocessing_context": run.method,
                "timeout": run.timeout,
            }
        return evenstep.DataLoader(
            dataset_of(setup, run.slow),
            policy=self._policy(),
            collate_fn=collate,
            length_fn=length_of,
            num_workers=run.workers,
            memory=evenstep.Memory(
                prefetch=run.prefetch,
                buffer_size=setup.buffer_size,
                chunk_size=setup.chunk_size,
            ),
            faults=evenstep.Faults(**faults),
            accumulate=setup.accumulate,
            loss_scaling="token" if setup.packs else "sample",
            **options,
            **workers,
        )

    def _policy(self) -> Policy:
        return POLICIES[self.setup.policy] if self.setup.context == 1 else CONTEXT_POLICY

    def _train(self, rank: int) -> None:
        report, world = self.reports[rank], self.world
        loader = self._loader()
        try:
            if self.states:
                states = [json.loads(state) for state in self.states]
                own = rank // self.setup.context
                whole = evenstep.merge_states(states) if self.merged else states[own]
                loader.load_state_dict(whole)
            self._epochs(loader, rank, report)
        except (EvenstepError, Injected) as error:
            report.error = error
        report.ended_at = world.now
        loader.close()
        if report.left:
            world.sleep(self.settings.stays)
        main = current()
        others = [fiber for fiber in main.process.fibers if fiber is not main]
        for fiber in others:
            world.until(
                lambda fiber=fiber: not fiber.alive, fiber.joined, timeout=8 + self._stopped
            )
        report.lingering = [
            f"{f.name}\n{stack_of(f)}" for f in others if f.alive and f.name != LOST
        ]

    def _epochs(self, loader: evenstep.DataLoader, rank: int, report: Report) -> None:
        run = self.settings
        leaves = run.leaves if run.who_leaves in (None, rank) else None
        while loader.epoch < self.setup.epochs:
            steps = loader.steps()
            for batch, step in steps:
                if self.setup.context == 1:
                    indices, _ = batch
                else:
                    indices = list(map(int, batch["index"]))
                    report.tokens.append(batch["input_ids"].flatten().tolist())
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
