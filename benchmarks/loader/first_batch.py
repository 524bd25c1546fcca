"""Seconds to the first batch, and memory, beside torch's DataLoader on the same samples.

One process, no torch.distributed, two workers. The trainer imports torch and evenstep before the
clock starts, and does nothing between making its loader and its first pass.

    torch      batches of 16 samples
    default    `Even` with as many tokens as 16 of the longest samples have
    update     the same, with `update_tokens` of four such groups
    spawn      a new interpreter for every process

    text       tokens that cost nothing to make
    slow       the same in 50 ms each
    images     JPEGs of 2 megapixels, decoded by PIL

    first      seconds from `iter()` to the first batch of the first pass
    whole      seconds until as many real tokens have come as `update_tokens` asks for: no loader
               can fill the update sooner than its samples are made
    next       seconds to the first batch of a second pass, median; workers are not persistent
    padding    of the first ten steps of text
    memory     MiB that the loader adds to the trainer, in all of its processes, while a pass is
               under way: proportional set size, in which shared pages count once

Every measurement runs in a new process.
"""

from __future__ import annotations

import io
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import Dataset

import evenstep
import evenstep.loader
from benchmarks.lib.report import Table, in_turn, parser, show, spreads
from benchmarks.lib.usage import memory

SIDES = ("torch", "default", "update", "spawn")
WORK = ("text", "slow", "images")
BATCH, LONGEST = 16, 512
UPDATE = 4 * BATCH * LONGEST
PASSES = 3
_SHARE = 0.95  # of an update's tokens that it has on average at least


class Samples(Dataset[dict[str, torch.Tensor]]):
    def __init__(self, work: str) -> None:
        self.work = work
        self.lengths = np.random.default_rng(0).integers(20, LONGEST, 20_000)
        file = io.BytesIO()
        Image.radial_gradient("L").resize((1600, 1200)).convert("RGB").save(file, "jpeg")
        self.jpeg = file.getvalue()

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = torch.arange(int(self.lengths[index]))
        sample = {"input_ids": tokens, "labels": tokens}
        if self.work == "slow":
            time.sleep(0.05)
        if self.work == "images":
            with Image.open(io.BytesIO(self.jpeg)) as picture:
                small = np.array(picture.convert("RGB").resize((224, 224)))
            sample["pixel_values"] = torch.from_numpy(small)
        return sample


def loader_of(side: str, work: str) -> Iterable[Any]:
    collate = evenstep.PadCollator()
    if side == "torch":
        return torch.utils.data.DataLoader(
            Samples(work), batch_size=BATCH, shuffle=True, num_workers=2, collate_fn=collate
        )
    return evenstep.DataLoader(
        Samples(work),
        policy=evenstep.Even(max_tokens=BATCH * LONGEST),
        update_tokens=UPDATE if side == "update" else None,
        collate_fn=collate,
        shuffle=True,
        num_workers=2,
        multiprocessing_context="spawn" if side == "spawn" else None,
    )


def measure(side: str, work: str) -> dict[str, float]:
    """One measurement, in this process."""
    before, loader = memory(), loader_of(side, work)
    first, added, padding, whole = [], 0.0, 0.0, 0.0
    for number in range(PASSES):
        begun = time.monotonic()
        batches = iter(loader)
        batch = next(batches)
        first.append(time.monotonic() - begun)
        if number == 0:
            added = (memory() - before) / 2**20
            masks = [batch["attention_mask"]]
            while sum(int(mask.sum()) for mask in masks) < _SHARE * UPDATE:
                masks.append(next(batches)["attention_mask"])
            whole = time.monotonic() - begun
            if work == "text":
                masks += [each["attention_mask"] for each in islice(batches, 10 - len(masks))]
                masks = masks[:10]
                padding = 1 - sum(int(m.sum()) for m in masks) / sum(m.numel() for m in masks)
        del batches
    found = {"first": first[0], "whole": whole, "next": statistics.median(first[1:])}
    return {**found, "padding": padding, "memory": added}


def run(side: str, work: str) -> dict[str, float]:
    command = [sys.executable, "-m", __spec__.name, "--measure", side, "--work", work]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        sys.exit(f"{side} failed\n{done.stderr}")
    result: dict[str, float] = json.loads(done.stdout)
    return result


def main() -> None:
    example = "python -m benchmarks.loader.first_batch --work text slow --repeats 9"
    arguments = parser(__doc__ or "", example, repeats=5)
    arguments.add_argument("--work", nargs="+", default=WORK, choices=WORK)
    arguments.add_argument("--sides", nargs="+", default=SIDES, choices=SIDES)
    arguments.add_argument("--measure", choices=SIDES, help="make one measurement, in JSON")
    options = arguments.parse_args()
    if options.measure:
        print(json.dumps(measure(options.measure, options.work[0])))
        return
    rows = []
    for work in options.work:
        runs = in_turn(options.sides, options.repeats, partial(run, work=work))
        for side, measured in runs.items():
            found = spreads(measured)
            cells = [found[name].text(2) for name in ("first", "whole", "next", "padding")]
            rows.append([work, side, *cells, found["memory"].text(0)])
    header = ["samples", "loader", "first s", "whole s", "next s", "padding of ten", "memory MiB"]
    title = f"Median and 10th to 90th percentile of {options.repeats} processes each"
    show(Table(header, rows, title), as_json=options.json)


if __name__ == "__main__":
    main()
