"""Samples per second, and how long a trainer waits: the service beside torch's DataLoader.

One trainer, Parquet sources with weights, samples whose transform takes some time, packed
micro-batches of the same number of samples. Each reader mixes the sources in its own way:

    torch                 every worker has all sources open and draws by weight
    processes             evenstep's service, its roles processes of this machine
    ray                   the same, its roles Ray actors

Two settings: "small", 64 samples of 0.1 ms a step, is the worst case for any service, as each step
is a handful of messages whatever is in it; "realistic" has 192 samples of 2 ms. Each with each
number of --loaders, the processes that read; with --transform-ms, "small" with other times.

    samples/s      as fast as the trainer can ask, after the first steps
    CPU ms         processor time of all processes for a step, after the first ones
    wait ms        exposed wait of a step where training takes 1.25 times as long as loading does
    first step s   from the start, everything included; Ray s of it until Ray ran

Each measurement is a process of its own; readers take turns, and ratios are of neighbouring runs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

import evenstep.service as es
from benchmarks.lib.report import Spread, Table, in_turn, parser, show, spreads
from benchmarks.lib.usage import processor_seconds

SETTINGS = {"small": (64, 0.1, 200), "realistic": (192, 2.0, 20)}
"""Samples of a step, milliseconds of a sample's transform, and steps that are measured."""
SIDES = ("torch", "processes", "ray")
SOURCES, FILES, ROWS = 8, 8, 187  # files of a source, rows of a file
MEAN, MOST = 500, 2000  # tokens of a sample
HEADROOM, WAITS = 1.25, 20
COLUMNS = {
    "samples/s": ("samples_per_second", 0),
    "CPU ms": ("cpu_ms_per_step", 1),
    "wait ms": ("wait_ms", 2),
    "first step s": ("first_seconds", 1),
    "Ray s": ("ray_seconds", 1),
}
HEADER = ["", "x torch", "x torch's CPU ms", *COLUMNS]
Figures = dict[str, float]


def prepared(row: Mapping[str, Any], *, milliseconds: float) -> dict[str, Any]:
    """A sample of the stored tokens, after this much work in the processor."""
    blob = row["tokens"]
    end = time.thread_time() + milliseconds / 1000
    while time.thread_time() < end:
        hashlib.sha256(blob).digest()
    return {"input_ids": np.frombuffer(blob, np.int32).astype(np.int64)}


def strategy(graph: Any, mesh: Any, step: int) -> Any:
    return graph.mix().distribute("DP").balance("greedy").plan()


def sources_of(folder: str, milliseconds: float) -> list[es.Source]:
    transform = partial(prepared, milliseconds=milliseconds)
    return [
        es.Source(f"source-{k}", f"{folder}/{k}/*.parquet", transform=transform, weight=1.0 + k % 3)
        for k in range(SOURCES)
    ]


def write(folder: Path, seed: int) -> None:
    """Parquet files of token ids as bytes."""
    import pyarrow
    import pyarrow.parquet

    rng = np.random.default_rng(seed)
    for k, file in product(range(SOURCES), range(FILES)):
        (folder / str(k)).mkdir(exist_ok=True)
        lengths = np.clip(MEAN * rng.lognormal(-0.2, 0.6, ROWS), 16, MOST).astype(int)
        own = [rng.integers(0, 50_000, n, np.int32).tobytes() for n in lengths]
        table = pyarrow.table({"tokens": pyarrow.array(own, pyarrow.binary())})
        pyarrow.parquet.write_table(table, folder / str(k) / f"{file}.parquet")


# Readers: each yields the number of samples of each packed step.


def with_torch(sources: list[es.Source], samples: int, loaders: int, seed: int) -> Iterator[int]:
    from torch.utils.data import DataLoader, IterableDataset, get_worker_info

    from evenstep.batch.pack import PackCollator
    from evenstep.data import open_reader

    class Mixed(IterableDataset[Any]):
        """Every worker has all sources open."""

        def __iter__(self) -> Iterator[Any]:
            info = get_worker_info()
            own = seed + (0 if info is None else info.id)
            streams = [open_reader(source, seed=own).read(passes=1_000) for source in sources]
            weights = np.array([source.weight for source in sources])
            rng = np.random.default_rng(own)
            while True:
                for k in rng.choice(len(streams), 64, p=weights / weights.sum()).tolist():
                    yield next(streams[k]).sample

    loader = DataLoader(
        Mixed(),
        batch_size=samples,
        num_workers=loaders,
        collate_fn=PackCollator(),
        multiprocessing_context="fork",
    )
    for _ in loader:
        yield samples


def with_service(
    sources: list[es.Source], samples: int, loaders: int, seed: int, backend: str
) -> Iterator[int]:
    job = es.Job(
        sources=sources,
        mesh=es.Mesh(DP=1),
        strategy=strategy,
        max_tokens=samples * MOST,
        draws=es.DrawOptions(samples_per_step=samples, stop="repeat"),
        seed=seed,
    )
    name = f"throughput-{os.getpid()}"
    with es.start(job, backend=backend, loaders=loaders, name=name) as service:
        for _, step in service.client(0):
            yield step.samples


def one_run(
    side: str, folder: str, samples: int, milliseconds: float, steps: int, loaders: int, seed: int
) -> Figures:
    figures = {}
    begin = time.perf_counter()
    if side == "ray":
        import ray

        ray.init(
            num_cpus=os.cpu_count(),
            object_store_memory=500_000_000,
            log_to_driver=False,
            logging_level="ERROR",
            include_dashboard=False,
        )
        figures["ray_seconds"] = time.perf_counter() - begin
    given = sources_of(folder, milliseconds), samples, loaders, seed
    reader = with_torch(*given) if side == "torch" else with_service(*given, backend=side)
    next(reader)
    figures["first_seconds"] = time.perf_counter() - begin
    for _ in range(4 * loaders):  # each reader fills what it prepares ahead
        next(reader)
    # torch's workers finish their batches at about the same time: whole rounds are measured.
    steps = max(steps // loaders, 1) * loaders
    before, middle = processor_seconds(os.getpid(), itself=True), time.perf_counter()
    read = sum(next(reader) for _ in range(steps))
    seconds = time.perf_counter() - middle
    processor = processor_seconds(os.getpid(), itself=True) - before
    waits = []
    for _ in range(WAITS):
        time.sleep(HEADROOM * seconds / steps)
        asked = time.perf_counter()
        next(reader)
        waits.append(1000 * (time.perf_counter() - asked))
    figures["samples_per_second"] = read / seconds
    figures["cpu_ms_per_step"] = 1000 * processor / steps
    figures["wait_ms"] = float(np.mean(waits))
    print(json.dumps(figures), flush=True)
    reader.close()  # type: ignore[attr-defined]
    return figures


def run(side: str, **given: Any) -> Figures:
    command = [sys.executable, "-m", "benchmarks.service.throughput"]
    command += ["--run", json.dumps({"side": side, **given})]
    # Ray's workers would give way to all other processes.
    environment = {"RAY_worker_niceness": "0", **os.environ, "RAY_USAGE_STATS_ENABLED": "0"}
    made = subprocess.run(command, env=environment, capture_output=True, text=True)
    printed = [line for line in made.stdout.splitlines() if line.startswith("{")]
    if not printed:
        sys.exit(f"{side} failed:\n{made.stderr[-2000:]}")
    figures: Figures = json.loads(printed[-1])
    return figures


def main() -> None:
    example = "python -m benchmarks.service.throughput --repeats 5 --loaders 1 2 4"
    arguments = parser(__doc__ or "", example, repeats=3)
    add = arguments.add_argument
    add("--loaders", type=int, nargs="+", default=[2], help="reading processes")
    add("--setting", choices=list(SETTINGS), help="one alone")
    add("--transform-ms", type=float, nargs="+", help="of a sample, in the small setting")
    add("--sides", nargs="+", choices=SIDES, default=SIDES)
    add("--run", help=argparse.SUPPRESS)
    options = arguments.parse_args()
    if options.run:
        one_run(**json.loads(options.run))
        return
    settings = [SETTINGS[options.setting]] if options.setting else list(SETTINGS.values())
    if options.transform_ms:
        settings = [(64, milliseconds, 60) for milliseconds in options.transform_ms]
    tables = []
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), options.seed)
        for (samples, milliseconds, steps), loaders in product(settings, options.loaders):
            measure = partial(
                run,
                folder=folder,
                samples=samples,
                milliseconds=milliseconds,
                steps=steps,
                loaders=loaders,
                seed=options.seed,
            )
            runs = in_turn(options.sides, options.repeats, measure)
            title = f"{samples} samples of {milliseconds:g} ms a step, {loaders} reading processes"
            tables.append(Table(HEADER, rows_of(runs), title))
    show(*tables, as_json=options.json)


def rows_of(runs: Mapping[str, Sequence[Figures]]) -> list[list[str]]:
    """A row for each reader: its ratios to torch's DataLoader, and its figures."""
    rows = []
    for side, own in runs.items():
        row = [side]
        for key, _ in (COLUMNS["samples/s"], COLUMNS["CPU ms"]):
            ratios = [mine[key] / base[key] for mine, base in zip(own, runs.get("torch", ()))]
            row.append(Spread.of(ratios).text(2) if ratios else "")
        found = spreads(own)
        for key, digits in COLUMNS.values():
            row.append(found[key].text(digits) if key in found else "")
        rows.append(row)
    return rows


if __name__ == "__main__":
    # From a module that every process can import: what a job holds is sent to its roles.
    from benchmarks.service import throughput as this

    this.main()
