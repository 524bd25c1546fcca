"""Samples per second, and how long a trainer waits: service, torch DataLoader and Ray Data.

One trainer, Parquet sources with weights, samples that take some time to make, packed micro-batches
of the same number of samples. Each loader mixes in its own way:

    service     one Source Loader actor for each reading process, planner, constructor; batches come
                balanced, in an order that does not depend on timing
    torch       DataLoader over an iterable dataset; every worker has all sources open and draws by
                weight
    Ray Data    one dataset for each source, `Dataset.mix` with the same weights, which mixes whole
                blocks; samples made by `map`, packed where they arrive

Two settings: "small", steps of 64 samples of 0.1 ms each, is the worst case for any service, as
each step is a handful of messages whatever is in it; "realistic" has 192 samples of some 2 ms each.

"CPU ms" is CPU time of all processes for a step, after the first ones: on a machine whose cores
are all busy, it decides. Ray Data's is left out, as its processes come and go. Samples per second
are as fast as the trainer can ask, after the first steps; Ray Data may have made much before it
gives the first batch, so compare "whole" with it, samples per second from the first request on.
Exposed wait is that of a trainer that takes some time for a step, afterwards. Each measurement is a
process of its own; loaders take turns, and ratios are of neighbouring runs.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import evenstep.service as es
from benchmarks.lib.report import Spread, machine, parser, print_json, progress
from benchmarks.service.mix import (
    SETTINGS,
    Setting,
    paths_of,
    sources_of,
    strategy,
    weights_of,
    write,
)
from evenstep.data import open_reader
from evenstep.tools.report import text_table

SIDES = {"service": "service", "torch": "torch", "ray_data": "Ray Data"}
WARM_UP = 6
WAITS = 20
Steps = Iterator[int]


def with_torch(options: argparse.Namespace, setting: Setting) -> Steps:
    from torch.utils.data import DataLoader, IterableDataset, get_worker_info

    from evenstep.batch.pack import PackCollator

    class Mixed(IterableDataset[Any]):
        """Every worker has all sources open."""

        def __iter__(self) -> Iterator[Any]:
            info = get_worker_info()
            seed = 0 if info is None else info.id
            sources = sources_of(options.folder, options.sources, setting.rounds)
            streams = [open_reader(source, seed=seed).read(passes=1_000) for source in sources]
            weights = np.array([source.weight for source in sources])
            rng = np.random.default_rng(seed)
            while True:
                for k in rng.choice(len(streams), 64, p=weights / weights.sum()).tolist():
                    yield next(streams[k]).sample

    loader = DataLoader(
        Mixed(),
        batch_size=setting.samples,
        num_workers=options.workers,
        collate_fn=PackCollator(),
        multiprocessing_context="fork",
    )
    for _ in loader:
        yield setting.samples


def with_service(options: argparse.Namespace, setting: Setting) -> Steps:
    job = es.Job(
        sources=sources_of(options.folder, options.sources, setting.rounds),
        mesh=es.Mesh(DP=1),
        strategy=strategy,
        max_tokens=setting.samples * 4096,
        samples_per_step=setting.samples,
        seed=options.seed,
        stop="repeat",
    )
    more = {"address": "local", "ray_options": ray_options(), "loaders": options.workers}
    with es.start(job, **more) as service:
        for _, step in service.client(0):
            yield sum(len(table) for table in step.samples)


def with_ray_data(options: argparse.Namespace, setting: Setting) -> Steps:
    import logging

    import ray

    from evenstep.batch.pack import PackCollator

    ray.init(**ray_options(), log_to_driver=False, logging_level="ERROR", include_dashboard=False)
    ray.data.DataContext.get_current().enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    # Every source's reading and mapping is a task of its own, which must not wait for all others.
    share = options.workers / (2 * options.sources)
    transform = sources_of(options.folder, 1, setting.rounds)[0].transform
    each = [
        ray.data.read_parquet(str(path), num_cpus=share).map(transform, num_cpus=share)
        for path in paths_of(options.folder, options.sources)
    ]
    mixed = each[0].mix(*each[1:], weights=weights_of(options.sources))
    pack = PackCollator()
    while True:
        for batch in mixed.iter_batches(
            batch_size=setting.samples, batch_format="numpy", prefetch_batches=2, drop_last=True
        ):
            samples = [{"input_ids": np.array(ids)} for ids in batch["input_ids"]]
            pack(samples)
            yield len(samples)


def ray_options() -> dict[str, Any]:
    return {"num_cpus": os.cpu_count(), "object_store_memory": 500_000_000}


def one_run(options: argparse.Namespace) -> None:
    setting = SETTINGS[options.setting]
    sides = {"service": with_service, "torch": with_torch, "ray_data": with_ray_data}
    steps = sides[options.side](options, setting)
    begin = time.perf_counter()
    next(steps)
    first = time.perf_counter() - begin
    early = sum(next(steps) for _ in range(WARM_UP))
    before, middle = cpu_seconds(), time.perf_counter()
    samples = sum(next(steps) for _ in range(setting.steps))
    end, after = time.perf_counter(), cpu_seconds()
    waits = []
    for _ in range(WAITS):
        time.sleep(setting.train_ms / 1000)
        asked = time.perf_counter()
        next(steps)
        waits.append(1000 * (time.perf_counter() - asked))
    figures = {
        "first_seconds": first,
        "whole_samples_per_second": (early + samples) / (end - begin),
        "samples_per_second": samples / (end - middle),
        "wait_ms": float(np.mean(waits)),
        "wait_p95_ms": float(np.percentile(waits, 95)),
    }
    if options.side != "ray_data":
        figures["cpu_ms_per_step"] = 1000 * (after - before) / setting.steps
    print(json.dumps(figures), flush=True)
    steps.close()  # type: ignore[attr-defined]


def cpu_seconds() -> float:
    """CPU seconds of this process and its descendants, on Linux; 0 elsewhere."""
    found, children = {}, {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rpartition(")")[2].split()
        except OSError:  # gone meanwhile
            continue
        process, parent = int(entry.parent.name), int(fields[1])
        found[process] = sum(map(int, fields[11:15]))
        children.setdefault(parent, []).append(process)
    mine = [os.getpid()]
    for process in mine:
        mine += children.get(process, [])
    return sum(found.get(process, 0) for process in mine) / os.sysconf("SC_CLK_TCK")


def run(side: str, setting: str, options: argparse.Namespace, folder: str) -> dict[str, float]:
    command = [
        sys.executable,
        "-m",
        "benchmarks.service.throughput",
        "--side",
        side,
        "--setting",
        setting,
        "--folder",
        folder,
    ]
    for name in ("sources", "workers", "seed"):
        command += [f"--{name}", str(getattr(options, name))]
    environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0"}
    made = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    printed = [line for line in made.stdout.splitlines() if line.startswith("{")]
    figures: dict[str, float] = json.loads(printed[-1])
    return figures


def main() -> None:
    arguments = parser(
        __doc__ or "", "python -m benchmarks.service.throughput --repeats 5", repeats=3
    )
    arguments.add_argument("--sources", type=int, default=8)
    arguments.add_argument("--workers", type=int, default=2, help="reading processes")
    arguments.add_argument("--setting", choices=list(SETTINGS), help="one alone")
    arguments.add_argument("--side", choices=list(SIDES), help=argparse.SUPPRESS)
    arguments.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = arguments.parse_args()
    if options.side:
        return one_run(options)
    wanted = [options.setting] if options.setting else list(SETTINGS)
    runs: dict[tuple[str, str], list[dict[str, float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), options.sources, options.seed)
        for repeat in range(options.repeats):
            for setting in wanted:
                for side in SIDES:
                    progress(f"run {repeat}: {setting}, {SIDES[side]}")
                    figures = run(side, setting, options, folder)
                    runs.setdefault((setting, side), []).append(figures)
    progress("")
    results = {setting: summary(setting, runs) for setting in wanted}
    if options.json:
        print_json({"machine": machine(), **results})
        return None
    for setting, found in results.items():
        show(setting, found, options)
    return None


def summary(
    setting: str, runs: dict[tuple[str, str], list[dict[str, float]]]
) -> dict[str, dict[str, dict[str, float]]]:
    """By side, the spread of each figure, and of the service's over it."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for side in SIDES:
        theirs, ours = runs[setting, side], runs[setting, "service"]
        found[side] = {n: Spread.of([t[n] for t in theirs]).as_dict() for n in theirs[0]}
        for name in ("samples_per_second", "whole_samples_per_second", "cpu_ms_per_step"):
            ratios = [o[name] / t[name] for o, t in zip(ours, theirs) if t.get(name)]
            if ratios:
                found[side][f"service_over_it_{name}"] = Spread.of(ratios).as_dict()
    return found


def show(
    name: str, found: dict[str, dict[str, dict[str, float]]], options: argparse.Namespace
) -> None:
    setting = SETTINGS[name]
    print(
        f"{name}: {options.sources} sources, {options.workers} reading processes, "
        f"{setting.samples} samples a step, training {setting.train_ms:g} ms a step; median "
        f"(p10-p90), {options.repeats} runs"
    )

    def text(side: str, figure: str, digits: int) -> str:
        spread = found[side].get(figure)
        if spread is None:
            return "-"
        return Spread(spread["median"], spread["p10"], spread["p90"]).text(digits)

    figures = {
        "samples/s": ("samples_per_second", 0),
        "service over it": ("service_over_it_samples_per_second", 2),
        "whole": ("whole_samples_per_second", 0),
        "service over it, whole": ("service_over_it_whole_samples_per_second", 2),
        "CPU ms a step": ("cpu_ms_per_step", 0),
        "service over it, CPU": ("service_over_it_cpu_ms_per_step", 2),
        "wait ms": ("wait_ms", 1),
        "wait p95 ms": ("wait_p95_ms", 1),
        "first step s": ("first_seconds", 1),
    }
    rows = [(title, *(text(side, *figure) for side in SIDES)) for title, figure in figures.items()]
    print(text_table(("", *SIDES.values()), rows))
    print()


if __name__ == "__main__":
    main()
