"""Memory of the service, compared with torch DataLoaders whose workers each open every source.

The setting is one machine with several data-parallel ranks, each a trainer process, and a mixture
of many Parquet sources. With torch, each rank has its own DataLoader, and each worker process draws
from the whole mixture. It therefore has every source open, and memory grows with ranks, workers and
sources. The service has as many reading processes, the Source Loaders, which share the
sources among them. Its planner, Data Constructors and registry are counted too.

All sides prepare the same samples and give each rank the same number of rows in each step. torch
holds a decoded row group of each open source in each worker, as readers of Parquet do, and forks
workers on Linux, so they share what the trainer had imported. All sides prepare some samples ahead:
torch two batches for each worker, the service a few of each source. Row groups are 16 MiB decoded;
those of most corpora are several times larger, and the ratio grows with them. Every source is a
file of the same content.

All processes of a run are measured while the trainers take steps and every source is being read:
the median of a few looks, in PSS, which divides a page among the processes that share it. Each side
and number of sources is a run in new processes.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks.lib.report import Spread, Table, in_turn, parser, show
from benchmarks.lib.usage import memory

PROCESSES = multiprocessing.get_context("spawn")
RANKS, WORKERS = 4, 2  # trainers, and reading processes for each
BATCH = 30  # samples of a rank in a step
TOKENS = 2048  # int32, of a sample: 8 KiB
ROW_GROUP = 16  # MiB
AHEAD = 4
"""Samples of a source that the service prepares ahead."""
LOOKS = 5
PATIENCE = 400.0  # seconds until a run can be measured
MEBI = 1 << 20
SIDES = ("torch", "service")


def prepared(row: Mapping[str, Any]) -> dict[str, Any]:
    return {"input_ids": np.frombuffer(row["tokens"], np.int32).astype(np.int64)}


def strategy(graph: Any, mesh: Any, step: int) -> Any:
    return graph.mix().distribute("DP").balance("greedy").plan()


def as_they_are(samples: list[Any]) -> Any:
    return samples


def sources_of(folder: Path, count: int) -> list[Any]:
    from evenstep.data import Source

    return [
        Source(f"source-{k:03d}", str(folder / f"{k:03d}.parquet"), transform=prepared)
        for k in range(count)
    ]


def write(folder: Path, count: int) -> None:
    """One file, under as many names as there are sources: each reader decodes it for itself."""
    import pyarrow
    import pyarrow.parquet

    rng = np.random.default_rng(0)
    rows = ROW_GROUP * MEBI // (4 * TOKENS)
    blobs = [rng.integers(0, 50_000, TOKENS, np.int32).tobytes() for _ in range(2 * rows)]
    table = pyarrow.table({"tokens": pyarrow.array(blobs, pyarrow.binary())})
    pyarrow.parquet.write_table(table, folder / "000.parquet", row_group_size=rows)
    for k in range(1, count):
        os.link(folder / "000.parquet", folder / f"{k:03d}.parquet")


# Trainers, a process each. They say when all is open, and take steps until they are ended.


def torch_trainer(ready: Connection, rank: int, folder: Path, count: int) -> None:
    from torch.utils.data import DataLoader, IterableDataset, get_worker_info

    from evenstep.data import open_reader
    from evenstep.data.parquet import DECODED

    DECODED.limit = 1 << 40

    class Mixed(IterableDataset[Any]):
        """All sources open in every worker, drawn from in turn."""

        def __iter__(self) -> Iterator[Any]:
            info = get_worker_info()
            seed = 1000 * rank + (0 if info is None else info.id)
            sources = sources_of(folder, count)
            streams = [open_reader(source, seed=seed).read() for source in sources]
            while True:
                for stream in streams:
                    yield next(stream).sample

    loader = DataLoader(
        Mixed(),
        batch_size=BATCH,
        num_workers=WORKERS,
        collate_fn=as_they_are,
        multiprocessing_context="fork",
    )
    train(iter(loader), ready, 1 + count * WORKERS // BATCH)


def service_trainer(ready: Connection, rank: int, address: str) -> None:
    import torch  # noqa: F401  as any trainer has it

    import evenstep.service as es

    train(iter(es.Client(address, "memory", rank)), ready, 2)


def train(batches: Iterator[Any], ready: Connection, before: int) -> None:
    for _ in range(before):
        next(batches)
    ready.send(True)
    while True:
        next(batches)
        time.sleep(0.2)


@contextmanager
def trainers(target: Any, *arguments: Any) -> Iterator[None]:
    """One for each rank, all of which take steps."""
    processes, ends = [], []
    try:
        for rank in range(RANKS):
            end, theirs = PROCESSES.Pipe(duplex=False)
            processes.append(PROCESSES.Process(target=target, args=(theirs, rank, *arguments)))
            processes[-1].start()
            theirs.close()
            ends.append(end)
        for end in ends:
            end.recv()
        yield
    except EOFError:
        sys.exit("a trainer has failed, see above")
    finally:
        # Workers too: one whose trainer is gone may wait forever for somebody to read from it.
        for process in processes:
            with suppress(psutil.Error):
                for each in (*psutil.Process(process.pid).children(), process):
                    each.kill()
            process.join()


# A run, in a process of its own


def with_torch(folder: Path, count: int) -> float:
    with trainers(torch_trainer, folder, count):
        return measured() - psutil.Process().memory_full_info().pss / MEBI


def with_service(folder: Path, count: int) -> float:
    """With its driver, which is this process."""
    import evenstep.service as es

    job = es.Job(
        sources=sources_of(folder, count),
        mesh=es.Mesh(DP=RANKS),
        strategy=strategy,
        collate=as_they_are,
        max_tokens=TOKENS * BATCH * 2,
        draws=es.DrawOptions(samples_per_step=BATCH * RANKS),
        memory=es.ServiceMemory(buffer_size=AHEAD),
    )
    with (
        es.start(
            job,
            backend="processes",
            loaders=RANKS * WORKERS,
            constructors=1,
            name="memory",
            faults=es.ServiceFaults(patience=PATIENCE),
        ) as service,
        trainers(service_trainer, service.address),
    ):
        until = time.monotonic() + PATIENCE
        while not all(  # every source is being read from
            all(loader.get("sources", {}).values()) for loader in service.status()["loaders"]
        ):
            if time.monotonic() > until:
                sys.exit("the service did not open all sources")
            time.sleep(1)
        return measured()


def measured() -> float:
    """MiB of this process and all that it has started: the median look."""
    looks = []
    for _ in range(LOOKS):
        time.sleep(1)
        looks.append(memory() / MEBI)
    return statistics.median(looks)


def run(side: str, folder: Path, count: int) -> float:
    with ProcessPoolExecutor(1, mp_context=PROCESSES) as pool:
        measure = with_service if side == "service" else with_torch
        return pool.submit(measure, folder, count).result()


def main() -> None:
    example = "python -m benchmarks.service.memory --sources 30 120"
    arguments = parser(__doc__ or "", example, repeats=1)
    arguments.add_argument("--sources", type=int, nargs="+", default=[30, 120])
    options = arguments.parse_args()
    rows: list[list[str]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder, max(options.sources))
        for count in options.sources:
            runs = in_turn(SIDES, options.repeats, partial(run, folder=folder, count=count))
            for side, own in runs.items():
                ratios = [mine / base for mine, base in zip(own, runs["service"])]
                row = [f"{count}", side, f"{statistics.median(own):,.0f}"]
                rows.append([*row, Spread.of(ratios).text(2)])
    columns = ["sources", "side", "PSS, MiB", "over the service"]
    title = f"{RANKS} ranks, {RANKS * WORKERS} reading processes each side"
    show(Table(columns, rows, title), as_json=options.json)


if __name__ == "__main__":
    # From a module that every process can import: what a job holds is sent to its roles.
    from benchmarks.service import memory as this

    this.main()
