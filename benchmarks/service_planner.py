"""What planning a step costs at the size of a large job, and how many bytes a plan is.

One process, no Ray, metadata only: the service's planner with 300 sources and 4,096 simulated
clients, whose metadata come out of arrays as they would out of Source Loaders' buffers. A step is
drawn from all sources, dealt to micro-batches and balanced over data-parallel ranks, checked and
logged. Lengths of each source are lognormal, with a median of its own.

Timed is `Planner.plan` of each step, the first ones left out; on a busy machine compare its CPU
time. Bytes are those of a plan as Ray sends it to a constructor (pickled), of all that the loaders
are sent, and of what one client is told of its own samples.
"""

from __future__ import annotations

import argparse
import pickle
import time
from typing import Any

import numpy as np
import numpy.typing as npt
from _report import Spread, parser, print_json, progress
from torch.utils.data import Dataset

import evenstep.service as es
from evenstep.graph import DGraph, LoadingPlan
from evenstep.plan.samples import SampleTable
from evenstep.report import text_table
from evenstep.service.layout import work_of
from evenstep.service.measuring import SUPERVISED
from evenstep.topology import ClientPlaceTree

TARGET = 50.0  # milliseconds
WARM_UP = 3
LOADERS = 16
METHODS = ("greedy", "karmarkar_karp")


class Nothing(Dataset[Any]):
    """Stands for a source; it is never read."""

    def __len__(self) -> int:
        return 1 << 30

    def __getitem__(self, index: int) -> Any:
        raise AssertionError("the planner reads no samples")


class Arrays:
    """Metadata of sources without end."""

    def __init__(self, names: tuple[str, ...], columns: tuple[str, ...], seed: int) -> None:
        rng = np.random.default_rng(seed)
        medians = rng.uniform(100, 1500, len(names))
        self.names, self.columns = names, columns
        self.lengths = [
            np.clip(rng.lognormal(np.log(median), 0.8, 4096), 8, 8192).astype(np.int64)
            for median in medians
        ]

    def ahead(self, source: int, position: int, count: int) -> SampleTable:
        positions = np.arange(position, position + count, dtype=np.int64)
        lengths = self.lengths[source][positions % 4096]
        return SampleTable(
            sources=self.names,
            source=np.full(count, source, np.int32),
            position=positions,
            shard=(positions // 65536).astype(np.int32),
            index=positions % 65536,
            lengths={
                name: lengths if name in ("text", SUPERVISED) else np.zeros(count, np.int64)
                for name in self.columns
            },
        )


class Strategy:
    def __init__(self, method: str) -> None:
        self.method = method

    def __call__(self, graph: DGraph, mesh: ClientPlaceTree, step: int) -> LoadingPlan:
        return graph.mix().distribute("DP").cost(work).balance(self.method).plan()


def work(lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Of a layer of hidden size 4,096: attention's part grows with the square."""
    return lengths * (24 * 4096) + 2 * lengths * lengths


def planner_of(method: str, options: argparse.Namespace) -> tuple[es.Job, es.Planner]:
    if options.clients % 8:
        raise SystemExit("--clients must be a multiple of 8, the tensor-parallel ranks")
    job = es.Job(
        sources=[
            es.Source(f"source-{k:03d}", Nothing(), weight=1.0 + k % 7)
            for k in range(options.sources)
        ],
        mesh=es.Mesh(DP=options.clients // 8, TP=8),
        strategy=Strategy(method),
        micro_batches=options.micro_batches,
        max_tokens=options.max_tokens,
        samples_per_step=options.samples,
        seed=options.seed,
        stop="repeat",
    )
    return job, es.Planner(job, Arrays(job.names, job.columns, options.seed))


def measured(method: str, options: argparse.Namespace) -> dict[str, Any]:
    job, planner = planner_of(method, options)
    layout = es.Layout.deal(job.names, LOADERS)
    times, cpu, pickled, to_loaders, to_client = [], [], [], [], []
    imbalance, before = [], []
    for step in range(WARM_UP + options.repeats):
        progress(f"{method}: step {step}")
        begin, begin_cpu = time.perf_counter(), time.process_time()
        plan = planner.plan(step)
        seconds, cpu_seconds = time.perf_counter() - begin, time.process_time() - begin_cpu
        assert plan is not None
        if step < WARM_UP:
            continue
        times.append(1000 * seconds)
        cpu.append(1000 * cpu_seconds)
        pickled.append(len(pickle.dumps(plan)) / 1024)
        to_loaders.append(
            sum(len(pickle.dumps(work_of(plan, shares))) for shares in layout.shares) / 1024
        )
        own = [plan.members(0, k) for k in range(plan.micro_batches)]
        to_client.append(len(pickle.dumps(own)) / 1024)
        imbalance.append(plan.imbalance)
        before.append(plan.imbalance_before)
    return {
        "method": method,
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
        __doc__ or "", "python benchmarks/service_planner.py --clients 4096", repeats=30
    )
    arguments.add_argument("--clients", type=int, default=4096)
    arguments.add_argument("--sources", type=int, default=300)
    arguments.add_argument("--samples", type=int, default=8192, help="drawn in a step")
    arguments.add_argument("--micro-batches", type=int, default=4)
    arguments.add_argument("--max-tokens", type=int, default=32_768)
    options = arguments.parse_args()
    results = [measured(method, options) for method in METHODS]
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
            f"{each['method']}: {wall / TARGET:.2f} of the {TARGET:g} ms aimed at, "
            f"{cpu / TARGET:.2f} by CPU time"
        )


if __name__ == "__main__":
    main()
