"""Samples per second, and how long a trainer waits: the service beside other readers.

One trainer, Parquet sources with weights, samples whose transform takes some time, packed
micro-batches of the same number of samples. Each reader mixes the sources in its own way:

    torch DataLoader      every worker has all sources open and draws by weight
    service, processes    evenstep's service, its roles processes of this machine
    service, Ray          the same, its roles Ray actors

Two settings: "small", 64 samples of 0.1 ms a step, is the worst case for any service, as each step
is a handful of messages whatever is in it; "realistic" has 192 samples of 2 ms. With --transform-ms
or --sample-kb, each pair of them instead; and each with each number of --loaders, the processes
that read.

    samples/s      as fast as the trainer can ask, after the first steps
    CPU ms         processor time of all processes for a step, after the first ones
    wait ms        exposed wait of a step where training takes 1.25 times as long as loading does
    first step s   from the start, everything included; Ray s of it until Ray ran

Each measurement is a process of its own; readers take turns, and ratios are of neighbouring runs.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.lib.processor import processor_seconds
from benchmarks.lib.report import Spread, Table, in_turn, parser, show, spreads
from benchmarks.service.mix import SETTINGS, Setting, setting_of, write
from benchmarks.service.readers import NAMES, READERS, Reading

HEADROOM = 1.25
BASE = "torch"
Figures = dict[str, float]


def one_run(options: argparse.Namespace) -> None:
    given = json.loads(options.run)
    setting = Setting(**given["setting"])
    reading = Reading(
        folder=Path(given["folder"]),
        sources=options.sources,
        setting=setting,
        loaders=given["loaders"],
        seed=options.seed,
        seconds={},
    )
    begin = time.perf_counter()
    steps = READERS[given["side"]](reading)
    next(steps)
    first = time.perf_counter() - begin
    for _ in range(setting.warm_up):
        next(steps)
    before, middle = processor_seconds(os.getpid(), itself=True), time.perf_counter()
    samples = sum(next(steps) for _ in range(setting.steps))
    end, after = time.perf_counter(), processor_seconds(os.getpid(), itself=True)
    train = HEADROOM * (end - middle) / setting.steps
    waits = []
    for _ in range(setting.waits):
        time.sleep(train)
        asked = time.perf_counter()
        next(steps)
        waits.append(1000 * (time.perf_counter() - asked))
    figures = {
        "samples_per_second": samples / (end - middle),
        "wait_ms": float(np.mean(waits)),
        "first_seconds": first,
        "cpu_ms_per_step": 1000 * (after - before) / setting.steps,
        **reading.seconds,
    }
    print(json.dumps(figures), flush=True)
    steps.close()  # type: ignore[attr-defined]


def run(side: str, setting: Setting, loaders: int, folder: str, options: Any) -> Figures:
    """
    Raises:
        RuntimeError: the reader failed.
    """
    given = {"side": side, "setting": asdict(setting), "loaders": loaders, "folder": folder}
    command = [sys.executable, "-m", "benchmarks.service.throughput", "--run", json.dumps(given)]
    command += ["--sources", str(options.sources), "--seed", str(options.seed)]
    # Ray's workers would give way to all other processes.
    environment = {"RAY_worker_niceness": "0", **os.environ, "RAY_USAGE_STATS_ENABLED": "0"}
    made = subprocess.run(command, env=environment, capture_output=True, text=True)
    printed = [line for line in made.stdout.splitlines() if line.startswith("{")]
    if not printed:
        raise RuntimeError(f"{NAMES[side]} failed:\n{made.stderr[-2000:]}")
    figures: Figures = json.loads(printed[-1])
    return figures


def arguments() -> argparse.ArgumentParser:
    example = "python -m benchmarks.service.throughput --repeats 5 --loaders 1 2 4"
    result = parser(__doc__ or "", example, repeats=3)
    result.add_argument("--sources", type=int, default=8)
    result.add_argument("--loaders", type=int, nargs="+", default=[2], help="reading processes")
    result.add_argument("--setting", choices=list(SETTINGS), help="one alone")
    result.add_argument("--transform-ms", type=float, nargs="+", help="of a sample")
    result.add_argument("--sample-kb", type=float, nargs="+", help="stored")
    result.add_argument("--sides", nargs="+", choices=list(NAMES), default=list(NAMES))
    result.add_argument("--run", help=argparse.SUPPRESS)
    return result


def cases_of(options: argparse.Namespace) -> list[tuple[str, Setting, int]]:
    """Name, setting and number of loaders of each case."""
    if options.transform_ms or options.sample_kb:
        grid = product(options.sample_kb or [2.0], options.transform_ms or [0.1], options.loaders)
        made = [(setting_of(ms, kb, loaders), loaders) for kb, ms, loaders in grid]
        return [(setting.text, setting, loaders) for setting, loaders in made]
    names = [options.setting] if options.setting else list(SETTINGS)
    return [
        (f"{name}: {SETTINGS[name].text}", SETTINGS[name], loaders)
        for name in names
        for loaders in options.loaders
    ]


def main() -> None:
    options = arguments().parse_args()
    if options.run:
        return one_run(options)
    tables = []
    for name, setting, loaders in cases_of(options):
        with tempfile.TemporaryDirectory() as folder:
            write(Path(folder), options.sources, setting, options.seed)
            measure = partial(run, setting=setting, loaders=loaders, folder=folder, options=options)
            runs = in_turn(options.sides, options.repeats, measure)
        title = f"{name}; {options.sources} sources, {loaders} reading processes; median (p10-p90)"
        tables.append(Table(["", "x torch", "x torch's CPU ms", *COLUMNS], rows_of(runs), title))
    show(*tables, as_json=options.json)
    return None


COLUMNS = {
    "samples/s": ("samples_per_second", 0),
    "CPU ms": ("cpu_ms_per_step", 1),
    "wait ms": ("wait_ms", 2),
    "first step s": ("first_seconds", 1),
    "Ray s": ("ray_seconds", 1),
}


def rows_of(runs: Mapping[str, Sequence[Figures]]) -> list[list[str]]:
    """A row for each reader: its ratios to torch's DataLoader, and its figures."""
    rows = []
    for side, own in runs.items():
        row = [NAMES[side]]
        for key, _ in (COLUMNS["samples/s"], COLUMNS["CPU ms"]):
            ratios = [mine[key] / base[key] for mine, base in zip(own, runs.get(BASE, ()))]
            row.append(Spread.of(ratios).text(2) if ratios else "")
        found = spreads(own)
        for key, digits in COLUMNS.values():
            row.append(found[key].text(digits) if key in found else "")
        rows.append(row)
    return rows


if __name__ == "__main__":
    main()
