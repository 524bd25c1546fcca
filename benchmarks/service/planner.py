"""Time of planning a step at the size of a large job.

One process, no Ray, metadata only: the service's planner with 300 sources and 4,096 simulated
clients, which train on 8,192 samples a step. Its metadata come from 16 simulated Source Loaders
with full buffers. Their own time is subtracted; the time in which the planner asks them and sends
each its share of the plan is not. A step is drawn from all sources, dealt to micro-batches and
balanced over data-parallel ranks, checked, logged and divided among the loaders. Lengths of each
source are lognormal, with a median of its own.

Timed is `Planner.plan` of each step, the first ones left out, in processor time.
"""

from __future__ import annotations

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
SOURCES, LOADERS, SAMPLES = 300, 16, 8192
DATA, TENSOR = 512, 8  # ranks of 4,096 clients
METHODS = ("greedy", "karmarkar_karp")


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


def measured(method: str, repeats: int, seed: int) -> list[str]:
    job = es.Job(
        sources=[
            es.Source(f"source-{k:03d}", Nothing(), weight=1.0 + k % 7) for k in range(SOURCES)
        ],
        mesh=es.Mesh(DP=DATA, TP=TENSOR),
        strategy=Strategy(method),
        micro_batches=4,
        max_tokens=32_768,
        draws=es.DrawOptions(samples_per_step=SAMPLES, stop="repeat"),
        seed=seed,
    )
    layout = es.SourceLayout.of(job.names, LOADERS)
    simulated = [Buffers(job, [share.source for share in shares], seed) for shares in layout.shares]
    pool = LoaderPool(layout, [LocalHandle(each) for each in simulated], columns=job.columns)
    planner = es.Planner(job, pool)
    milliseconds, before, after = [], [], []
    for step in range(WARM_UP + repeats):
        progress(f"{method}: step {step}")
        for each in simulated:
            each.seconds = 0.0
        begin = time.process_time()
        plan = planner.plan(step)
        seconds = time.process_time() - begin
        assert plan is not None
        if step >= WARM_UP:
            milliseconds.append(1000 * (seconds - sum(each.seconds for each in simulated)))
            before.append(plan.imbalance_before)
            after.append(plan.imbalance)
    imbalance = f"{np.mean(before):.3f} -> {np.mean(after):.3f}"
    return [method, Spread.of(milliseconds).text(1), imbalance]


def main() -> None:
    example = "python -m benchmarks.service.planner --repeats 12"
    options = parser(__doc__ or "", example, repeats=30).parse_args()
    title = f"{DATA * TENSOR:,} clients, {SOURCES} sources; median (p10-p90)"
    rows = [measured(method, options.repeats, options.seed) for method in METHODS]
    show(Table(["method", "CPU ms per step", "imbalance"], rows, title), as_json=options.json)


if __name__ == "__main__":
    main()
