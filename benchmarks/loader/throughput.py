"""Samples per second through the whole data path, beside torch's DataLoader and the released ODB.

One process, no torch.distributed, two workers. Two kinds of sample, both with lengths of the
`ultrachat` distribution:

    text    int64 tensors `input_ids` and `labels`
    image   the same, and one float32 tensor of 1.2 MB

Samples cost little to make, so the figures show what a loader adds: moving, measuring, planning,
padding. All loaders read the same dataset, pad with the same `PadCollator`, and their batches are
counted and dropped.

    torch          fixed batches, as large as evenstep's are on average, in the dataset's order
    evenstep       TokenBudget
    ODB            the same token budget and the same buffer

Fixed batches pad more, so they are more bytes to move. Where collation runs is each loader's own
way: in torch's workers, in evenstep's batcher process, in ODB's collate process.

The clock runs from the moment a worker is asked for its first sample to the arrival of the last
batch, so every sample's whole way is inside it for every loader, and the start of processes is not.
Each measurement is an epoch in a fresh process, of half as many samples for ODB, which takes
longest; loaders alternate. CPU time is that of all processes of the loader and is what to compare
on a busy machine.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
import warnings
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

import evenstep
from benchmarks.lib.report import Table, in_turn, parser, progress, show, spreads
from evenstep.tools.simulate import sample_lengths

PROCESSES = multiprocessing.get_context("forkserver")
MAX_TOKENS, BUFFER, WORKERS = 12_288, 256, 2
LOADERS = {"torch": "torch", "evenstep": "evenstep", "odb": "ODB"}
IMAGE = (3, 320, 320)  # float32: 1.2 MB
SAMPLES = {"text": 6_000, "image": 2_000}


class Samples(Dataset[dict[str, torch.Tensor]]):
    """Ready-made token and pixel values, copied into fresh tensors as preprocessing would."""

    def __init__(self, kind: str, count: int, seed: int) -> None:
        self._lengths = sample_lengths("ultrachat", count, seed).tolist()
        generator = torch.Generator().manual_seed(seed)
        self._tokens = torch.randint(32_000, (2 * max(self._lengths),), generator=generator)
        self._image = torch.rand(IMAGE, generator=generator) if kind == "image" else None
        # When a worker was first asked for a sample; memory that all processes share.
        self.begun = torch.zeros(1, dtype=torch.float64).share_memory_()

    def __len__(self) -> int:
        return len(self._lengths)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        if not self.begun[0]:
            self.begun[0] = time.monotonic()
        begin = index % max(self._lengths)
        input_ids = self._tokens[begin : begin + self._lengths[index]].clone()
        sample = {"input_ids": input_ids, "labels": input_ids.clone()}
        if self._image is not None:
            sample["pixel_values"] = self._image.clone()
        return sample


def make_loader(name: str, dataset: Samples, options: argparse.Namespace) -> Any:
    collate = evenstep.PadCollator()
    workers: Any = {"num_workers": WORKERS, "multiprocessing_context": "fork"}
    if name == "torch":
        return DataLoader(dataset, collate_fn=collate, batch_size=options.batch_size, **workers)
    if name == "evenstep":
        return evenstep.DataLoader(
            dataset,
            policy=evenstep.TokenBudget(max_tokens=MAX_TOKENS),
            collate_fn=collate,
            memory=evenstep.Memory(buffer_size=BUFFER),
            **workers,
        )
    import odb

    return odb.ODBDataLoader(
        dataset,
        token_budget=MAX_TOKENS,
        buffer_size=BUFFER,
        no_warmup=True,  # a full buffer from the first round on
        loss_scaling="exact",
        collate_fn=collate,
        **workers,
    )


def epoch(name: str, options: argparse.Namespace) -> dict[str, float]:
    """Runs one epoch in this process."""
    warnings.simplefilter("ignore")  # the package warns of what this benchmark asks of it
    torch.set_num_threads(1)
    count = options.samples // 2 if name == "odb" else options.samples
    dataset = Samples(options.kind, count, options.seed)
    loader = make_loader(name, dataset, options)
    samples = tokens = batches = 0
    cpu = sum(os.times()[:4])
    for batch in loader:
        batches += 1
        samples += len(batch["input_ids"])
        tokens += batch["input_ids"].numel()
        del batch
    end = time.monotonic()
    if samples != count:
        sys.exit(f"{LOADERS[name]} delivered {samples} of {count} samples")
    if name == "evenstep":
        loader.close()
    del loader
    asked = float(dataset.begun[0])
    return {
        "samples_per_s": samples / (end - asked),
        "cpu_us_per_sample": 1e6 * (sum(os.times()[:4]) - cpu) / samples,  # children's included
        "samples_per_batch": samples / batches,
        "padded_tokens_per_sample": tokens / samples,
    }


def batch_size_of(options: argparse.Namespace) -> int:
    """Mean samples of the batches that evenstep forms, which do not change between runs."""
    loader = make_loader("evenstep", Samples("text", options.samples, options.seed), options)
    return round(options.samples / sum(1 for _ in loader.steps()))


def run_alone(name: str, options: argparse.Namespace) -> dict[str, float]:
    """Runs one epoch in a process of its own, which has imported everything when it starts."""
    results, theirs = PROCESSES.Pipe(duplex=False)
    process = PROCESSES.Process(target=_child, args=(name, options, theirs))
    process.start()
    theirs.close()
    try:
        result: dict[str, float] = results.recv()
    except EOFError:
        sys.exit(f"{LOADERS[name]} failed on {options.kind} samples")
    process.join()
    return result


def _child(name: str, options: argparse.Namespace, results: Connection) -> None:
    results.send(epoch(name, options))


def measure(kind: str, options: argparse.Namespace) -> Table:
    """All loaders on one kind of sample."""
    options = argparse.Namespace(**vars(options), kind=kind)
    options.samples = options.samples or SAMPLES[kind]
    progress(f"{kind}: batches that evenstep forms")
    options.batch_size = batch_size_of(options)
    runs = in_turn(LOADERS, options.repeats, lambda name: run_alone(name, options))
    rows = []
    base = spreads(runs["torch"])["samples_per_s"].median
    for name, taken in runs.items():
        found = spreads(taken)
        rows.append(
            [
                LOADERS[name],
                found["samples_per_s"].text(0),
                f"{found['samples_per_s'].median / base:.2f}",
                f"{found['cpu_us_per_sample'].median:,.0f}",
                f"{found['samples_per_batch'].median:.1f}",
                f"{found['padded_tokens_per_sample'].median:,.0f}",
            ]
        )
    columns = ["loader", "samples/s", "to torch", "CPU µs/sample", "samples/batch"]
    columns += ["padded tokens/sample"]
    return Table(columns, rows, f"{kind}: {options.samples:,} samples, median (p10-p90)")


def main() -> None:
    arguments = parser(
        __doc__ or "", "python -m benchmarks.loader.throughput --kinds text --repeats 3", repeats=5
    )
    arguments.add_argument("--kinds", nargs="+", choices=list(SAMPLES), default=list(SAMPLES))
    arguments.add_argument("--samples", type=int, help="in an epoch", default=None)
    options = arguments.parse_args()
    PROCESSES.set_forkserver_preload(["evenstep.loader", "evenstep.tools.simulate", "odb"])
    show(*(measure(kind, options) for kind in options.kinds), as_json=options.json)


if __name__ == "__main__":
    main()
