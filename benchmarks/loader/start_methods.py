"""What it costs to start workers: seconds to the first batch, and memory, of each start method.

One process, no torch.distributed, two workers, policy `Even`. The dataset is defined in a module,
so every start method can be used. The trainer imports torch and evenstep before the clock starts.

    default       the fork server that starts when the first loader is made
    fork          from the trainer
    spawn         a new interpreter for every process

A trainer does other work between making its loader and its first pass: it prepares its model.
`--prepare` says for how long, which is what the fork server has to start in.

    first     seconds from `iter()` to the first batch of the first pass
    next      the same of a second pass, median; workers are not persistent
    memory    MiB that the loader adds to the trainer, in all of its processes, while a pass is
              under way: proportional set size, in which shared pages count once

Every measurement runs in a new process.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from functools import partial

import torch
from torch.utils.data import Dataset

import evenstep
import evenstep.loader
from benchmarks.lib.report import Table, in_turn, parser, show, spreads
from benchmarks.lib.usage import memory

METHODS = {"default": None, "fork": "fork", "spawn": "spawn"}
PASSES = 3


class Samples(Dataset[dict[str, torch.Tensor]]):
    """Tokens that cost nothing to make."""

    def __len__(self) -> int:
        return 2_000

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = torch.arange(20 + index % 100)
        return {"input_ids": tokens, "labels": tokens}


def measure(method: str, prepare: float) -> dict[str, float]:
    """One measurement, in this process."""
    before = memory()
    loader = evenstep.DataLoader(
        Samples(),
        policy=evenstep.Even(max_tokens=1024),
        memory=evenstep.Memory(buffer_size=64),
        num_workers=2,
        multiprocessing_context=METHODS[method],
    )
    time.sleep(prepare)
    first = []
    added = 0.0
    for number in range(PASSES):
        begun = time.monotonic()
        steps = loader.steps()
        next(steps)
        first.append(time.monotonic() - begun)
        if number == 0:
            added = (memory() - before) / 2**20
        steps.close()
    loader.close()
    return {"first": first[0], "next": statistics.median(first[1:]), "memory": added}


def run(method: str, prepare: float) -> dict[str, float]:
    command = [sys.executable, "-m", __spec__.name, "--measure", method, "--prepare", str(prepare)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        sys.exit(f"{method} failed\n{done.stderr}")
    result: dict[str, float] = json.loads(done.stdout)
    return result


def main() -> None:
    example = "python -m benchmarks.loader.start_methods --prepare 0 5 --repeats 9"
    arguments = parser(__doc__ or "", example, repeats=5)
    arguments.add_argument(
        "--prepare", type=float, nargs="+", default=[0.0, 5.0], help="seconds before the first pass"
    )
    arguments.add_argument("--measure", choices=METHODS, help="make one measurement, in JSON")
    options = arguments.parse_args()
    if options.measure:
        print(json.dumps(measure(options.measure, options.prepare[0])))
        return
    rows = []
    for prepare in options.prepare:
        runs = in_turn(METHODS, options.repeats, partial(run, prepare=prepare))
        for method, measured in runs.items():
            found = spreads(measured)
            cells = [found[name].text(2) for name in ("first", "next")]
            rows.append([method, f"{prepare:g}", *cells, found["memory"].text(0)])
    header = ["start method", "prepare s", "first s", "next s", "memory MiB"]
    title = f"Median and 10th to 90th percentile of {options.repeats} processes each"
    show(Table(header, rows, title), as_json=options.json)


if __name__ == "__main__":
    main()
