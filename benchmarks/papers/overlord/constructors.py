"""Figure 14 of the OVERLORD paper: clients with Data Constructors, and without.

Planner, Source Loaders and Data Constructors are the service's own classes in one process; clients
are stubs that ask each step once. Without constructors each client has a `StepFetcher`, which is
what a constructor fetches with: it asks the planner for the plan, and every loader that has samples
of its bucket. What a message has for arguments and answers is pickled and counted, and the
processor time that a role spends on it is measured, pickling included. A role that is asked by all
at once answers the last after it has answered all others; so the busiest planner, loader and
constructor together are the least that the last client waits. No network is in it.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

import evenstep.service as es
from benchmarks.lib.report import progress
from benchmarks.papers.outcome import Outcome, Table
from evenstep.service.constructor.step_fetcher import StepFetcher
from evenstep.service.messages import LocalHandle, LocalReply, Message, Reply
from evenstep.service.planner.loader_pool import LoaderPool
from evenstep.strategy import DGraph, LoadingPlan
from evenstep.strategy.mesh import ClientPlaceTree

CLIENTS = (64, 256, 1024, 4096)
SHARED = 16
"""Clients of a data-parallel group: CP=2, TP=8."""
SOURCES, LOADERS = 32, 16
SAMPLES = 8
"""Of a data-parallel group in a step."""
LENGTHS = 2048


class Lengths(Dataset[Any]):
    """Samples without content."""

    def __init__(self, seed: int) -> None:
        drawn = np.random.default_rng(seed).lognormal(6, 0.8, LENGTHS)
        self.lengths = np.clip(drawn, 8, 4096).astype(int)

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> dict[str, Any]:
        ids = torch.zeros(int(self.lengths[index]), dtype=torch.int64)
        return {"input_ids": ids, "labels": ids}


@dataclass
class Load:
    """What a role was asked for."""

    messages: int = 0
    sent: int = 0
    """Bytes of arguments and answers."""
    seconds: float = 0.0

    def clear(self) -> None:
        self.messages, self.sent, self.seconds = 0, 0, 0.0


_NESTED = [0.0]
"""Seconds of the calls that each call under way has made itself."""


class CountingHandle(LocalHandle):
    """A role in this process, and what it is asked for."""

    def __init__(self, role: Any, load: Load) -> None:
        super().__init__(role)
        self.load = load

    def send(self, message: str, *arguments: Any) -> Reply:
        return self._counted(arguments, super().send(message, *arguments))

    def send_all(self, messages: Sequence[Message]) -> Reply:
        return self._counted(messages, super().send_all(messages))

    def _counted(self, asked: Any, reply: Reply) -> Reply:
        def run() -> Any:
            size = len(pickle.dumps(asked))
            _NESTED.append(0.0)
            begin = time.process_time()
            answer = reply.result()
            size += len(pickle.dumps(answer))
            seconds = time.process_time() - begin
            self.load.seconds += seconds - _NESTED.pop()
            _NESTED[-1] += seconds
            self.load.messages += 1
            self.load.sent += size
            return answer

        return LocalReply(run)


def strategy(graph: DGraph, mesh: ClientPlaceTree, step: int) -> LoadingPlan:
    return graph.mix().distribute("DP").balance().plan()


@dataclass(frozen=True)
class Found:
    """One step of one size, with or without constructors."""

    planner: Load
    loaders: Sequence[Load]
    constructors: Sequence[Load]

    @property
    def busiest(self) -> tuple[float, float, float]:
        """Milliseconds of the planner, of the busiest loader and of the busiest constructor."""
        most = max(each.seconds for each in self.loaders)
        building = max((each.seconds for each in self.constructors), default=0.0)
        return 1e3 * self.planner.seconds, 1e3 * most, 1e3 * building

    def cells(self) -> list[str]:
        planner, loader, constructor = self.busiest
        every = [self.planner, *self.loaders]
        return [
            f"{self.planner.messages:,}",
            f"{sum(each.messages for each in self.loaders):,}",
            f"{sum(each.sent for each in every) / 2**20:,.1f}",
            f"{planner:,.0f}",
            f"{loader:,.0f}",
            f"{constructor:,.0f}" if self.constructors else "",
            f"{planner + loader + constructor:,.0f}",
        ]


def measured(clients: int, seed: int, *, with_constructors: bool) -> Found:
    """The second step: in the first, roles load what they need."""
    job = es.Job(
        sources=[es.Source(f"source-{k:02d}", Lengths(seed + k)) for k in range(SOURCES)],
        mesh=es.Mesh(DP=clients // SHARED, CP=2, TP=8),
        strategy=strategy,
        max_tokens=SAMPLES * 4096,
        draws=es.DrawOptions(samples_per_step=SAMPLES * clients // SHARED, stop="repeat"),
        seed=seed,
    )
    layout = es.SourceLayout.of(job.names, LOADERS)
    roles = [es.SourceLoader(part) for part in job.loader_jobs(layout)]
    try:
        pool = LoaderPool(layout, [LocalHandle(role) for role in roles], columns=job.columns)
        loads = Found(Load(), [Load() for _ in roles], [])
        planner = CountingHandle(es.Planner(job, pool), loads.planner)
        loaders = [CountingHandle(role, load) for role, load in zip(roles, loads.loaders)]
        ranks = job.tree.ranks.ravel().tolist()
        if with_constructors:
            made = [
                es.DataConstructor(job, [bucket], planner, loaders, layout)
                for bucket in range(job.tree.sizes["DP"])
            ]
            loads = Found(loads.planner, loads.loaders, [Load() for _ in made])
            handles = [CountingHandle(*each) for each in zip(made, loads.constructors)]
            of = {rank: handles[job.tree.place(rank).DP] for rank in ranks}

            def ask(rank: int, step: int) -> None:
                of[rank].send("deliver", step, rank, step).result()
        else:
            fetchers = {rank: StepFetcher([rank], planner, loaders, layout) for rank in ranks}

            def ask(rank: int, step: int) -> None:
                plan = fetchers[rank].plan(step)
                assert plan is not None
                fetchers[rank].samples(plan)

        _steps(ranks, ask, [loads.planner, *loads.loaders, *loads.constructors])
    finally:
        for role in roles:
            role.close()
    return loads


def _steps(ranks: Sequence[int], ask: Callable[[int, int], None], loads: Sequence[Load]) -> None:
    for step in (0, 1):
        for load in loads:
            load.clear()
        for rank in ranks:
            ask(rank, step)


def figure_14(seed: int) -> Outcome:
    rows = []
    last = {}
    for clients in CLIENTS:
        for name, constructors in (("with", True), ("without", False)):
            progress(f"{clients} clients, {name} constructors")
            found = measured(clients, seed, with_constructors=constructors)
            rows.append([f"{clients:,}", name, *found.cells()])
            last[clients, name] = sum(found.busiest)
    progress("")
    header = ["clients", "constructors", "messages to the planner", "to loaders", "MiB of both"]
    header += ["planner, ms", "busiest loader, ms", "busiest constructor, ms"]
    header += ["last client, at least, ms"]
    ratios = [last[n, "without"] / last[n, "with"] for n in CLIENTS[1:]]
    sizes = ", ".join(f"{ratio:.0f}x at {n:,}" for ratio, n in zip(ratios, CLIENTS[1:]))
    return Outcome(
        [Table(header, rows, "One step, processor time")],
        "latency 10x at 2k GPUs; fails at 4k",
        sizes,
    )
