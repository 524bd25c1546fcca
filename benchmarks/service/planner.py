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
from benchmarks.lib.report import Spread, parser, print_json, progress
from evenstep.service.job.sample_measure import SUPERVISED
from evenstep.service.messages import LocalHandle
from evenstep.service.planner.loader_pool import LoaderPool
from evenstep.service.source_loader.source_buffer import Ahead
from evenstep.strategy import DGraph, LoaderTask, LoadingPlan
from evenstep.strategy.mesh import ClientPlaceTree
from evenstep.tools.report import text_table

TARGET = 50.0  # milliseconds
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
        micro_batches=options.micro_batches,
        max_tokens=options.max_tokens,
        draws=es.DrawOptions(samples_per_step=options.samples, unit=unit, stop="repeat"),
        seed=options.seed,
    )


def measured(method: str, unit: str, options: argparse.Namespace) -> dict[str, Any]:
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
    return {
        "method": method,
        "unit": unit,
        "samples": len(plan),
        "buckets": plan.buckets,
        "milliseconds": Spread.of(times),
        "cpu_milliseconds": Spread.of(cpu),
        "plan_kib": Spread.of(pickled),
        "loaders_kib": Spread.of(to_loaders),
        "client_kib": Spread.of(to_client),
        "state_kib": len(pickle.dumps(planner.state_dict())) / 1024,
        "imbalance": float(np.mean(imbalance)),
        "imbalance_before": float(np.mean(before)),
        "microseconds_per_sample": 1000 * float(np.median(times)) / len(plan),
    }


def main() -> None:
    arguments = parser(
        __doc__ or "", "python -m benchmarks.service.planner --clients 4096", repeats=30
    )
    arguments.add_argument("--clients", type=int, default=4096)
    arguments.add_argument("--sources", type=int, default=300)
    arguments.add_argument("--samples", type=int, default=8192, help="drawn in a step")
    arguments.add_argument("--micro-batches", type=int, default=4)
    arguments.add_argument("--max-tokens", type=int, default=32_768)
    options = arguments.parse_args()
    results = [measured(method, unit, options) for method, unit in CASES]
    progress("")
    if options.json:
        print_json(
            {
                "clients": options.clients,
                "sources": options.sources,
                "results": [
                    {k: v.as_dict() if isinstance(v, Spread) else v for k, v in each.items()}
                    for each in results
                ],
            }
        )
        return
    print(
        f"{options.clients:,} clients, {options.sources} sources, {results[0]['samples']:,} "
        f"samples a step, {results[0]['buckets']} data-parallel ranks; median (p10-p90)"
    )
    head = (
        "method",
        "weights in",
        "ms per step",
        "CPU ms",
        "plan KiB",
        "to loaders KiB",
        "to a client KiB",
        "imbalance",
    )
    print(
        text_table(
            head,
            [
                (
                    each["method"],
                    each["unit"],
                    each["milliseconds"].text(1),
                    each["cpu_milliseconds"].text(1),
                    each["plan_kib"].text(0),
                    each["loaders_kib"].text(0),
                    each["client_kib"].text(2),
                    f"{each['imbalance_before']:.3f} -> {each['imbalance']:.3f}",
                )
                for each in results
            ],
        )
    )
    for each in results:
        wall, cpu = (each[name].median for name in ("milliseconds", "cpu_milliseconds"))
        print(
            f"{each['method']}, weights in {each['unit']}: {wall / TARGET:.2f} of the {TARGET:g} "
            f"ms aimed at, {cpu / TARGET:.2f} by CPU time"
        )


if __name__ == "__main__":
    main()
