"""Size of the record of what was seen, and what it takes to write and to query.

One process, no Ray, metadata only: the service's planner with 30 sources of other weights, whose
shards of 10,000 samples come in random order, and so do the samples of each, as a source's do. 64
data-parallel ranks train on 4,096 samples a step. The planner records each step in a folder of this
machine, as a running job does; the size of the files is extrapolated to a billion samples.

Timed is processor time, all threads together: of what is done for a step to record it, apart from
planning it, and of queries of a sample and of a step of the whole folder. `read` is what a query
reads of the files, their metadata apart.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

import evenstep.service as es
from benchmarks.lib.report import Spread, Table, parser, progress, show
from benchmarks.service.planner import Nothing
from evenstep.data.shard_order import ShardOrder
from evenstep.mixture.sample_table import SampleId, SampleTable
from evenstep.service.planner.seen import SeenStep, SeenStore, begin_run, parquet_of
from evenstep.service.planner.seen_writer import STEPS
from evenstep.strategy import BufferedMetadata, DGraph, LoadingPlan

SOURCES, SHARD, RANKS, SAMPLES = 30, 10_000, 64, 4096


def strategy(graph: DGraph, mesh: Any, step: int) -> LoadingPlan:
    return graph.mix().distribute("DP").balance("greedy").plan()


def metadata(job: es.Job, total: int, seed: int) -> BufferedMetadata:
    """Of more samples of each source than a job of so many draws."""
    weights = np.array([source.weight for source in job.sources])
    parts = []
    for number, share in enumerate(weights / weights.sum()):
        progress(f"source {number}")
        count = int(total * share * 1.1) + 2 * SAMPLES
        sizes = [SHARD] * (3 * count // SHARD + 1)
        order = ShardOrder(sizes, seed=seed, name=job.names[number]).parts(0)
        shards, indices = [], []
        while SHARD * len(shards) < count:
            part = next(order)
            shards.append(np.full(SHARD, part.shard))
            indices.append(part.indices)
        position = np.arange(SHARD * len(shards))
        rng = np.random.default_rng([seed, number])
        lengths = np.clip(rng.lognormal(6, 0.8, len(position)), 8, 8192).astype(np.int64)
        parts.append(
            SampleTable(
                job.names,
                np.full(len(position), number),
                position,
                np.concatenate(shards),
                np.concatenate(indices),
                dict.fromkeys(job.columns, lengths),
            )
        )
    return BufferedMetadata(SampleTable.concatenate(parts))


def rows_read(url: Path, asked: Sequence[tuple[str, Any]]) -> int:
    """Rows of the row groups whose statistics do not exclude what is asked for."""
    rows = 0
    for path in url.glob("run-*/*.parquet"):
        about = pq.read_metadata(path)
        for number in range(about.num_row_groups):
            group = about.row_group(number)
            found = {group.column(k).path_in_schema: group.column(k).statistics for k in range(5)}
            if all(found[name].min <= value <= found[name].max for name, value in asked):
                rows += group.num_rows
    return rows


def timed(query: Callable[..., Any], *arguments: Any) -> tuple[float, Any]:
    """Milliseconds of processor time, and the answer."""
    begin = time.process_time()
    answer = query(*arguments)
    return 1000 * (time.process_time() - begin), answer


def recorded(plans: Sequence[LoadingPlan]) -> bytes:
    return parquet_of([SeenStep.of(plan) for plan in plans])


def main() -> None:
    example = "python -m benchmarks.service.seen --steps 2000"
    arguments = parser(__doc__ or "", example, repeats=20)
    arguments.add_argument("--steps", type=int, default=1024, help="of 4,096 samples each")
    options = arguments.parse_args()
    job = es.Job(
        sources=[
            es.Source(f"source-{k:02d}", Nothing(), weight=1.0 + k % 7) for k in range(SOURCES)
        ],
        mesh=es.Mesh(DP=RANKS),
        strategy=strategy,
        draws=es.DrawOptions(samples_per_step=SAMPLES),
        seed=options.seed,
    )
    known = metadata(job, options.steps * SAMPLES, options.seed)
    rng = np.random.default_rng(options.seed)
    with tempfile.TemporaryDirectory() as folder:
        url = Path(folder)
        planner = es.Planner(job, known, seen=begin_run(url, job.names, None))
        plans, drawn, writing = [], [], []
        for step in range(options.steps):
            progress(f"step {step}")
            plan = planner.plan(step)
            assert plan is not None
            plans.append(plan)
            if len(plans) == STEPS:
                drawn.append(plan.samples.identity(int(rng.integers(len(plan)))))
                spent, _ = timed(recorded, plans)
                writing.append(spent / STEPS)
                plans = []
        planner.close()
        files = list(url.glob("run-*/*.parquet"))
        size, samples = sum(path.stat().st_size for path in files), options.steps * SAMPLES
        timed(lambda: SeenStore(url).of_step(0))  # what is imported
        of_sample, of_step, read_of_sample, read_of_step = [], [], [], []
        for at in rng.integers(len(drawn), size=options.repeats).tolist():
            sample, step = drawn[at], (at + 1) * STEPS - 1
            spent, rows = timed(lambda sample: SeenStore(url).of_sample(sample), sample)
            assert [row["step"] for row in rows] == [step]
            of_sample.append(spent)
            read_of_sample.append(rows_read(url, list(zip(SampleId._fields, sample))))
            spent, rows = timed(lambda step: SeenStore(url).of_step(step), step)
            assert len(rows) == SAMPLES
            of_step.append(spent)
            read_of_step.append(rows_read(url, [("step", step)]))
    read = [f"{np.mean(each) / samples:.2%}" for each in (read_of_sample, read_of_step)]
    rows = [
        ["samples, in files", f"{samples:,}, {len(files):,}"],
        ["bytes per sample", f"{size / samples:.3f}"],
        ["GB per billion samples", f"{size / samples:.2f}"],
        ["CPU ms per step to record it", Spread.of(writing).text(2)],
        ["CPU ms of a query of a sample", Spread.of(of_sample).text(0)],
        ["rows that it reads", read[0]],
        ["CPU ms of a query of a step", Spread.of(of_step).text(0)],
        ["rows that it reads", read[1]],
    ]
    title = f"{SOURCES} sources, {RANKS} ranks, {SAMPLES:,} samples a step; median (p10-p90)"
    show(Table(["figure", "value"], rows, title), as_json=options.json)


if __name__ == "__main__":
    main()
