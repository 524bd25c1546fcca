"""Memory of the service, compared with torch DataLoaders whose workers each open every source.

The setting is one machine with several data-parallel ranks, each a trainer process, and a mixture
of many Parquet sources. With torch, each rank has its own DataLoader, and each worker process draws
from the whole mixture. It therefore has every source open, and memory grows with ranks, workers and
sources. The service has as many reading processes, the Source Loaders, which share the
sources among them. Its planner, Data Constructors, registry and Ray are counted too.

All sides prepare the same samples and give each rank the same number of rows in each step. "torch"
holds a decoded row group of each open source in each worker, as readers of Parquet do. "torch,
room" reads as the service does: each process keeps decoded rows up to a number of bytes, and
decodes again what found no room. torch forks workers on Linux, so they share what the trainer had
imported. All sides prepare some samples ahead: torch two batches for each worker, the service a few
of each source. Row groups are 16 MiB decoded by default, so that "torch" fits into 24 GiB; where it
does not fit, it is left out. Row groups of most corpora are several times larger, and the ratio
grows with them. Every source is a file of the same content.

All processes of a run are measured while the trainers take steps and every source is being read:
the median of a few looks, in PSS, which divides a page among the processes that share it. Each side
and number of sources is a separate run.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks.lib.report import Spread, Table, parser, progress, show

TOKEN = "EVENSTEP_BENCHMARK_MEMORY"
"""A variable in the environment of all processes of a run, to find them by."""
TOKENS = 2048  # int32, of a sample: 8 KiB
AHEAD = 4
"""Samples of a source that the service prepares ahead."""
LOOKS = 5
PATIENCE = 400.0  # seconds until a run can be measured
MEBI = 1 << 20
SIDES = ("torch", "torch, room", "service")
KINDS = ("trainers", "readers", "constructors", "planner, registry", "driver", "Ray")


def prepared(row: Mapping[str, Any]) -> dict[str, Any]:
    return {"input_ids": np.frombuffer(row["tokens"], np.int32).astype(np.int64)}


def strategy(graph: Any, mesh: Any, step: int) -> Any:
    return graph.mix().distribute("DP").balance("greedy").plan()


def as_they_are(samples: list[Any]) -> Any:
    return samples


def sources_of(options: argparse.Namespace) -> list[Any]:
    from evenstep.data import Source

    return [
        Source(f"source-{k:03d}", str(options.folder / f"{k:03d}.parquet"), transform=prepared)
        for k in range(options.count)
    ]


def write(folder: Path, count: int, mebibytes: int) -> None:
    """One file, under as many names as there are sources: each reader decodes it for itself."""
    import pyarrow
    import pyarrow.parquet

    rng = np.random.default_rng(0)
    rows = mebibytes * MEBI // (4 * TOKENS)
    blobs = [rng.integers(0, 50_000, TOKENS, np.int32).tobytes() for _ in range(2 * rows)]
    table = pyarrow.table({"tokens": pyarrow.array(blobs, pyarrow.binary())})
    pyarrow.parquet.write_table(table, folder / "000.parquet", row_group_size=rows)
    for k in range(1, count):
        os.link(folder / "000.parquet", folder / f"{k:03d}.parquet")


# Trainers, a process each. They say when all is open, and take steps until they are ended.


def torch_trainer(options: argparse.Namespace) -> None:
    from torch.utils.data import DataLoader, IterableDataset, get_worker_info

    from evenstep.data import open_reader
    from evenstep.data.parquet import DECODED

    if options.trainer == "torch":
        DECODED.limit = 1 << 40

    class Mixed(IterableDataset[Any]):
        """All sources open in every worker, drawn from in turn."""

        def __init__(self, sources: list[Any], seed: int) -> None:
            self.sources, self.seed = sources, seed

        def __iter__(self) -> Iterator[Any]:
            info = get_worker_info()
            seed = self.seed + (0 if info is None else info.id)
            streams = [open_reader(source, seed=seed).read() for source in self.sources]
            while True:
                for stream in streams:
                    yield next(stream).sample

    loader = DataLoader(
        Mixed(sources_of(options), 1000 * options.rank),
        batch_size=options.batch,
        num_workers=options.workers,
        collate_fn=as_they_are,
    )
    train(iter(loader), options, 1 + options.count * options.workers // options.batch)


def service_trainer(options: argparse.Namespace) -> None:
    import torch  # noqa: F401  as any trainer has it

    import evenstep.service as es

    train(iter(es.Client(options.address, "memory", options.rank)), options, 2)


def train(batches: Iterator[Any], options: argparse.Namespace, before: int) -> None:
    for _ in range(before):
        next(batches)
    print("ready", flush=True)
    while True:
        next(batches)
        time.sleep(0.2)


# A run


def with_torch(options: argparse.Namespace) -> dict[str, float]:
    with Trainers(options.side, options):
        return measured({})


def with_service(options: argparse.Namespace) -> dict[str, float]:
    import evenstep.service as es

    job = es.Job(
        sources=sources_of(options),
        mesh=es.Mesh(DP=options.ranks),
        strategy=strategy,
        collate=as_they_are,
        max_tokens=TOKENS * options.batch * 2,
        draws=es.DrawOptions(samples_per_step=options.batch * options.ranks),
        memory=es.MemoryOptions(buffer_size=AHEAD),
    )
    of_backend: dict[str, Any] = {
        "name": "memory",
        "faults": es.FaultOptions(patience=PATIENCE),
    }
    if options.backend == "ray":
        init = {"num_cpus": 1, "object_store_memory": 300_000_000}
        of_backend["ray"] = es.RayOptions(address="local", cpus=0, init=init)
    with es.start(
        job,
        backend=options.backend,
        loaders=options.ranks * options.workers,
        constructors=1,
        **of_backend,
    ) as service:
        options.address = service.address
        with Trainers("service", options):
            until = time.monotonic() + PATIENCE
            while not all(  # every source is being read from
                all(loader.get("sources", {}).values()) for loader in service.status()["loaders"]
            ):
                if time.monotonic() > until:
                    sys.exit("the service did not open all sources")
                time.sleep(1)
            status = service.status()
            kinds = {role["process"]["process"]: "readers" for role in status["loaders"]}
            if options.backend == "ray":  # of processes they are in the driver
                kinds |= {of["process"]["process"]: "constructors" for of in status["constructors"]}
                kinds[status["planner"]["process"]["process"]] = "planner, registry"
            return measured(kinds)


class Trainers:
    """One for each rank; a context that ends them."""

    def __init__(self, side: str, options: argparse.Namespace) -> None:
        commands = [
            [*command_of(options, trainer=side, rank=rank), "--trainer"]
            for rank in range(options.ranks)
        ]
        self._processes = [
            subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for command in commands
        ]

    def __enter__(self) -> None:
        for rank, process in enumerate(self._processes):
            assert process.stdout is not None
            if process.stdout.readline().strip() != "ready":
                self.__exit__()
                sys.exit(f"trainer {rank} has failed, see above")

    def __exit__(self, *_: object) -> None:
        # Workers too: one whose trainer is gone may wait forever for somebody to read from it.
        ended = [
            each
            for process in self._processes
            if process.poll() is None
            for each in (psutil.Process(process.pid), *psutil.Process(process.pid).children())
        ]
        for each in ended:
            with suppress(psutil.Error):
                each.kill()
        for process in self._processes:
            process.communicate()


def command_of(options: argparse.Namespace, **part: Any) -> list[str]:
    """This benchmark with the options of a run, and which part of it."""
    given = {name: str(v) if isinstance(v, Path) else v for name, v in vars(options).items()}
    part_of_run = json.dumps({**given, **part})
    return [sys.executable, "-m", "benchmarks.service.memory", "--part", part_of_run]


def measured(kinds: Mapping[int, str]) -> dict[str, float]:
    """MiB (PSS) that all processes of this run hold, by kind: the median look.

    Args:
        kinds: of processes whose command does not say.
    """
    looks = []
    for _ in range(LOOKS):
        time.sleep(1)
        looks.append(look(kinds))
    return sorted(looks, key=lambda each: sum(each.values()))[LOOKS // 2]


def look(kinds: Mapping[int, str]) -> dict[str, float]:
    pss: dict[str, float] = {}
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if process.environ().get(TOKEN) != os.environ[TOKEN]:
                continue
            kind = kinds.get(process.pid) or kind_of(process)
            pss[kind] = pss.get(kind, 0.0) + process.memory_full_info().pss / MEBI
    return pss


def kind_of(process: psutil.Process) -> str:
    if process.pid == os.getpid():
        return "driver"
    command = process.cmdline()
    if "--trainer" in command:
        # A worker that was forked has its trainer's command.
        return "trainers" if process.ppid() == os.getpid() else "readers"
    return "planner, registry" if "JobRegistry" in " ".join(command[:1]) else "Ray"


def run(side: str, count: int, options: argparse.Namespace) -> dict[str, float]:
    token = f"{os.getpid()}-{time.monotonic_ns()}"
    environment = {**os.environ, TOKEN: token, "RAY_USAGE_STATS_ENABLED": "0"}
    made = subprocess.run(
        command_of(options, count=count, side=side),
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=3 * PATIENCE,
    )
    wait_until_gone(token)
    figures: dict[str, float] = json.loads(made.stdout.splitlines()[-1])
    if side != "service":  # whose driver is part of it
        figures.pop("driver", None)
    return figures


def wait_until_gone(token: str) -> None:
    """Waits until all processes of a run have ended; kills them after a minute."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        left = []
        for process in psutil.process_iter():
            with suppress(psutil.Error, OSError):
                if process.environ().get(TOKEN) == token:
                    left.append(process)
        if not left:
            return
        time.sleep(0.5)
    for process in left:
        with suppress(psutil.Error):
            process.kill()


def main() -> None:
    arguments = parser(__doc__ or "", "python -m benchmarks.service.memory --ranks 4", repeats=1)
    arguments.add_argument("--sources", default="30,60,120,300", help="numbers of sources")
    arguments.add_argument("--sides", nargs="+", choices=SIDES, default=SIDES)
    arguments.add_argument("--backend", choices=("ray", "processes"), default="ray")
    arguments.add_argument("--ranks", type=int, default=4, help="data-parallel ranks")
    arguments.add_argument("--workers", type=int, default=2, help="reading processes of each rank")
    arguments.add_argument("--batch", type=int, default=30, help="samples of a rank in a step")
    arguments.add_argument("--mebibytes", type=int, default=16, help="of a row group")
    arguments.add_argument("--part", type=json.loads, help=argparse.SUPPRESS)
    # `kind_of` recognizes trainers by this word.
    arguments.add_argument("--trainer", action="store_true", help=argparse.SUPPRESS)
    options = arguments.parse_args()
    if options.part:
        part = argparse.Namespace(**options.part)
        part.folder = Path(part.folder)
        if part.trainer:
            return (service_trainer if part.trainer == "service" else torch_trainer)(part)
        made = (with_service if part.side == "service" else with_torch)(part)
        print(json.dumps(made), flush=True)
        return None
    counts = [int(word) for word in options.sources.split(",")]
    rows: list[list[str]] = []
    with tempfile.TemporaryDirectory() as folder:
        options.folder = Path(folder)
        write(options.folder, max(counts), options.mebibytes)
        for count in counts:
            sides = [s for s in options.sides if s != "torch" or has_room(count, options)]
            runs: dict[str, list[dict[str, float]]] = {side: [] for side in sides}
            for repeat in range(options.repeats):
                for side in sides:
                    progress(f"{count} sources, run {repeat}: {side}")
                    runs[side].append(run(side, count, options))
            rows += rows_of(count, runs)
    columns = ["sources", "PSS, MiB", *KINDS, "total", "over the service"]
    title = f"{options.ranks} ranks, {options.ranks * options.workers} reading processes each side"
    show(Table(columns, rows, title), as_json=options.json)
    return None


def has_room(count: int, options: argparse.Namespace) -> bool:
    """Whether this machine has the memory that torch will need; says so where it has not."""
    free = psutil.virtual_memory().available / MEBI
    needed = options.ranks * options.workers * (count * options.mebibytes * 1.05 + 200) + 500
    if needed > free:
        print(
            f"{count} sources: torch is left out, as it would need some {needed / 1024:.0f} GiB of "
            f"memory, and {free / 1024:.0f} are free; lower --mebibytes",
            file=sys.stderr,
        )
    return needed <= free


def rows_of(count: int, runs: dict[str, list[dict[str, float]]]) -> Iterator[list[str]]:
    totals = {side: [sum(run.values()) for run in own] for side, own in runs.items()}
    for side, own in runs.items():
        parts = (statistics.median(run.get(kind, 0.0) for run in own) for kind in KINDS)
        ratios = [mine / base for mine, base in zip(totals[side], totals.get("service", ()))]
        yield [
            f"{count}",
            side,
            *(f"{part:,.0f}" if part else "" for part in parts),
            f"{statistics.median(totals[side]):,.0f}",
            Spread.of(ratios).text(2) if ratios else "",
        ]


if __name__ == "__main__":
    main()
