"""Time of planning a step at the size of a large job, and bytes of a plan.

One process, no Ray, metadata only: the service's planner with 300 sources and 4,096 simulated
clients. Its metadata come from 16 simulated Source Loaders with full buffers. Their own time is
subtracted; the time in which the planner asks them and sends each its share of the plan is not. A
step is drawn from all sources, dealt to micro-batches and balanced over data-parallel ranks,
checked, logged and divided among the loaders. Lengths of each source are lognormal, with a median
of its own.

Timed is `Planner.plan` of each step, the first ones left out; on a busy machine compare its CPU
time. Bytes are those of a whole plan (pickled), of all that the loaders are sent, and of what one
client receives about its own samples.
"""

from __future__ import annotations

import argparse
import pickle
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from torch.utils.data import Dataset

import evenstep.service as es
from benchmarks.lib.report import Spread, Table, parser, progress, show
from evenstep.service.job.sample_measure import SUPERVISED
from evenstep.service.messages import LocalHandle
from evenstep.service.planner.loader_pool import LoaderPool
from evenstep.service.source_loader.source_buffer import Ahead
from evenstep.strategy import DGraph, LoaderTask, LoadingPlan
from evenstep.strategy.mesh import ClientPlaceTree

WARM_UP = 3
LOADERS = 16
CASES = (("greedy", "samples"), ("karmarkar_karp", "samples"), ("greedy", "tokens"))
"""How steps are balanced, and what weights count."""


class Nothing(Dataset[Any]):
    """Stands for a source; it is never read."""

    def __len__(self) -> int:
        return 1 << 30

    def __getitem__(self, index: int) -> Any:
        raise AssertionError("the planner reads no samples")


class Buffers:
    """Stands in for a Source Loader whose buffers are always full."""

    DEPTH = 256
    PERIOD = 4096

    def __init__(self, job: es.Job, names: Sequence[str], seed: int) -> None:
        self.begins = dict.fromkeys(names, 0)
        self.rows: dict[str, npt.NDArray[np.int64]] = {}
        self.seconds = 0.0
        """CPU time that went into this, and not into planning."""
        self.sent = 0
        """Bytes of what it staged."""
        for name in names:
            rng = np.random.default_rng([seed, job.names.index(name)])
            median = rng.uniform(100, 1500)
            lengths = np.clip(rng.lognormal(np.log(median), 0.8, self.PERIOD), 8, 8192)
            of = {"text": lengths, SUPERVISED: lengths}
            columns = [of.get(column, np.zeros(self.PERIOD)) for column in job.columns]
            index = np.arange(self.PERIOD)
            whole = np.stack([index, index // 512, index % 512, *columns], axis=1)
            self.rows[name] = np.concatenate([whole, whole]).astype(np.int64)

    def describe(self) -> dict[str, dict[str, Any]]:
        return {name: {"size": None, "fingerprint": {"transform": ""}} for name in self.rows}

    def ahead(self, name: str, position: int, count: int) -> Ahead:
        begin = time.process_time()
        answer = self.rows_of(name, position, max(position + count, self.begins[name] + self.DEPTH))
        self.seconds += time.process_time() - begin
        return answer

    def rows_of(self, name: str, position: int, end: int) -> Ahead:
        first = position % self.PERIOD
        rows = self.rows[name][first : first + end - position].copy()
        rows[:, 0] = np.arange(position, end)
        return Ahead(rows, end, over=False)

    def stage(self, share: LoaderTask) -> None:
        begin = time.process_time()
        self.sent += len(pickle.dumps(share))
        ends = np.zeros(len(share.samples.sources), np.int64)
        np.maximum.at(ends, share.samples.source, share.samples.position + 1)
        for number in np.flatnonzero(ends).tolist():
            self.begins[share.samples.sources[number]] = int(ends[number])
        self.seconds += time.process_time() - begin


class Strategy:
    def __init__(self, method: str) -> None:
        self.method = method

    def __call__(self, graph: DGraph, mesh: ClientPlaceTree, step: int) -> LoadingPlan:
        graph = graph.mix().distribute("DP").cost(cost)
        return graph.balance(self.method).broadcast_at("TP").plan()


def cost(lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Cost in a layer of hidden size 4,096: attention's part grows with the square."""
    return lengths * (24 * 4096) + 2 * lengths * lengths


def job_of(method: str, unit: str, options: argparse.Namespace) -> es.Job:
    if options.clients % 8:
        raise SystemExit("--clients must be a multiple of 8, the tensor-parallel ranks")
    return es.Job(
        sources=[
            es.Source(f"source-{k:03d}", Nothing(), weight=1.0 + k % 7)
            for k in range(options.sources)
        ],
        mesh=es.Mesh(DP=options.clients // 8, TP=8),
        strategy=Strategy(method),
        micro_batches=4,
        max_tokens=32_768,
        draws=es.DrawOptions(samples_per_step=options.samples, unit=unit, stop="repeat"),
        seed=options.seed,
    )


def measured(method: str, unit: str, options: argparse.Namespace) -> list[str]:
    job = job_of(method, unit, options)
    layout = es.SourceLayout.of(job.names, LOADERS)
    simulated = [
        Buffers(job, [share.source for share in shares], options.seed) for shares in layout.shares
    ]
    handles = [LocalHandle(each) for each in simulated]
    pool = LoaderPool(layout, handles, columns=job.columns)
    planner = es.Planner(job, pool)
    times, cpu, pickled, to_loaders, to_client = [], [], [], [], []
    imbalance, before = [], []
    for step in range(WARM_UP + options.repeats):
        progress(f"{method} by {unit}: step {step}")
        for each in simulated:
            each.seconds, each.sent = 0.0, 0
        begin, begin_cpu = time.perf_counter(), time.process_time()
        plan = planner.plan(step)
        seconds, cpu_seconds = time.perf_counter() - begin, time.process_time() - begin_cpu
        assert plan is not None
        if step < WARM_UP:
            continue
        theirs = sum(each.seconds for each in simulated)
        times.append(1000 * (seconds - theirs))
        cpu.append(1000 * (cpu_seconds - theirs))
        pickled.append(len(pickle.dumps(plan)) / 1024)
        to_loaders.append(sum(each.sent for each in simulated) / 1024)
        own = [plan.members(0, k) for k in range(plan.micro_batches)]
        to_client.append(len(pickle.dumps(own)) / 1024)
        imbalance.append(plan.imbalance)
        before.append(plan.imbalance_before)
    return [
        method,
        unit,
        Spread.of(times).text(1),
        Spread.of(cpu).text(1),
        Spread.of(pickled).text(0),
        Spread.of(to_loaders).text(0),
        Spread.of(to_client).text(2),
        f"{np.mean(before):.3f} -> {np.mean(imbalance):.3f}",
    ]


def main() -> None:
    arguments = parser(
        __doc__ or "", "python -m benchmarks.service.planner --clients 4096", repeats=30
    )
    arguments.add_argument("--clients", type=int, default=4096)
    arguments.add_argument("--sources", type=int, default=300)
    arguments.add_argument("--samples", type=int, default=8192, help="drawn in a step")
    options = arguments.parse_args()
    columns = ["method", "weights in", "ms per step", "CPU ms", "plan KiB", "to loaders KiB"]
    columns += ["to a client KiB", "imbalance"]
    title = f"{options.clients:,} clients, {options.sources} sources; median (p10-p90)"
    rows = [measured(method, unit, options) for method, unit in CASES]
    show(Table(columns, rows, title), as_json=options.json)


if __name__ == "__main__":
    main()
