"""Samples per second through the whole data path, beside torch's DataLoader and the released ODB.

One process, no torch.distributed, two workers. Two kinds of sample, both with lengths of the
`ultrachat` distribution:

    text    int64 tensors `input_ids` and `labels`
    image   the same, and one float32 tensor of 1.2 MB

Samples cost little to make, so what is measured is what a loader adds: moving, measuring, planning,
padding. All loaders read the same dataset in the same order, pad with the same `PadCollator`, and
their batches are counted and dropped. evenstep and ODB group under the same token budget with the
same buffer; torch gets the fixed batch size that is evenstep's mean. Where collation runs is each
loader's own way: in torch's workers, in evenstep's batcher process, in ODB's collate process.

The clock runs from the moment a worker is asked for its first sample to the arrival of the last
batch, so every sample's whole way is inside it for every loader, and the start of processes is not:
that has its own column, as has the wait from `iter()` to the first batch. Each measurement is an
epoch in a fresh process; loaders alternate.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from _report import PEER, Spread, parser, print_json, progress, require_peer
from torch.utils.data import DataLoader, Dataset

import evenstep
from evenstep.report import text_table
from evenstep.simulate import sample_lengths

MAX_TOKENS = 12_288
LOADERS = ("torch", "evenstep", "odb")
IMAGE = (3, 320, 320)  # float32: 1.2 MB
DEFAULT_SAMPLES = {"text": 12_000, "image": 1_600}
TARGETS = {"text": 0.8, "image": 0.9}  # of torch's samples per second


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
    if name == "torch":
        return DataLoader(
            dataset,
            batch_size=options.batch_size,
            num_workers=options.workers,
            collate_fn=collate,
        )
    if name == "evenstep":
        return evenstep.DataLoader(
            dataset,
            policy=evenstep.TokenBudget(max_tokens=MAX_TOKENS),
            collate_fn=collate,
            buffer_size=options.buffer_size,
            num_workers=options.workers,
        )
    import odb

    return odb.ODBDataLoader(
        dataset,
        token_budget=MAX_TOKENS,
        buffer_size=options.buffer_size,
        no_warmup=True,  # a full buffer from the first round on
        loss_scaling="exact",
        num_workers=options.workers,
        collate_fn=collate,
    )


def epoch(name: str, options: argparse.Namespace) -> dict[str, float]:
    """Runs one epoch in this process."""
    warnings.simplefilter("ignore")  # the package warns of what this benchmark asks of it
    torch.set_num_threads(1)
    dataset = Samples(options.kind, options.samples, options.seed)
    loader = make_loader(name, dataset, options)
    samples = tokens = batches = 0
    first = 0.0
    begin = time.monotonic()
    for batch in iter_batches(loader):
        batches += 1
        first = first or time.monotonic()
        samples += len(batch["input_ids"])
        tokens += batch["input_ids"].numel()
        del batch
    end = time.monotonic()
    if samples != options.samples:
        sys.exit(f"{name} delivered {samples} of {options.samples} samples")
    asked = float(dataset.begun[0])
    return {
        "samples_per_s": samples / (end - asked),
        "whole_samples_per_s": samples / (end - begin),
        "start_s": asked - begin,
        "first_batch_s": first - begin,
        "batches": batches,
        "padded_tokens": tokens,
    }


def iter_batches(loader: Any) -> Iterator[dict[str, torch.Tensor]]:
    for batch in loader:
        yield batch


def run_child(name: str, kind: str, batch_size: int, options: argparse.Namespace) -> dict[str, Any]:
    command = [sys.executable, __file__, "--child", name, "--kind", kind]
    command += ["--batch-size", str(batch_size), "--samples", str(samples_of(kind, options))]
    command += ["--workers", str(options.workers), "--buffer-size", str(options.buffer_size)]
    command += ["--seed", str(options.seed)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if done.returncode:
        sys.exit(f"{name} on {kind} samples failed:\n{done.stderr}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def samples_of(kind: str, options: argparse.Namespace) -> int:
    return options.samples or DEFAULT_SAMPLES[kind]


def measure(kind: str, options: argparse.Namespace) -> dict[str, Any]:
    """All loaders on one kind of sample."""
    # What evenstep groups on average is not known beforehand, and does not change between runs.
    progress(f"{kind}: mean batch size")
    trial = run_child("evenstep", kind, 1, options)
    batch_size = round(samples_of(kind, options) / trial["batches"])
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in LOADERS}
    for repeat in range(options.repeats):
        for name in LOADERS:
            progress(f"{kind}: {name}, {repeat + 1}/{options.repeats}")
            runs[name].append(run_child(name, kind, batch_size, options))
    progress("")
    result: dict[str, Any] = {
        "kind": kind,
        "samples": samples_of(kind, options),
        "batch_size_of_torch": batch_size,
        "loaders": {name: summary(taken) for name, taken in runs.items()},
    }
    for key in ("samples_per_s", "whole_samples_per_s"):
        torch_rate = result["loaders"]["torch"][key]["median"]
        for own in result["loaders"].values():
            own[f"{key}_to_torch"] = own[key]["median"] / torch_rate
    return result


def summary(runs: list[dict[str, float]]) -> dict[str, Any]:
    rates = ("samples_per_s", "whole_samples_per_s")
    return {
        **{key: Spread.of([run[key] for run in runs]).as_dict() for key in rates},
        **{
            key: statistics.median(run[key] for run in runs)
            for key in ("start_s", "first_batch_s", "batches", "padded_tokens")
        },
    }


def table(result: dict[str, Any]) -> str:
    rows = [
        [
            name,
            Spread(*own["samples_per_s"].values()).text(0),
            f"{own['samples_per_s_to_torch']:.2f}",
            f"{own['whole_samples_per_s']['median']:,.0f}",
            f"{own['whole_samples_per_s_to_torch']:.2f}",
            f"{own['start_s']:.2f}",
            f"{own['first_batch_s']:.2f}",
            f"{result['samples'] / own['batches']:.1f}",
            f"{own['padded_tokens'] / 1e6:.1f}",
        ]
        for name, own in result["loaders"].items()
    ]
    header = ["loader", "samples/s", "to torch", "with start", "to torch", "start s", "1st batch s"]
    header += ["samples/batch", "M tokens, padded"]
    title = f"{result['kind']}: {result['samples']:,} samples, median (p10-p90)"
    return text_table(header, rows, title=title)


def main() -> None:
    arguments = parser(__doc__ or "", "loader_throughput.py --kinds text --repeats 3", repeats=5)
    arguments.add_argument("--kinds", nargs="+", choices=list(TARGETS), default=list(TARGETS))
    arguments.add_argument("--workers", type=int, default=2)
    arguments.add_argument("--buffer-size", type=int, default=256, help="of evenstep and ODB")
    arguments.add_argument("--samples", type=int, help="in an epoch", default=None)
    # How the benchmark calls itself for one epoch.
    arguments.add_argument("--child", choices=LOADERS, help=argparse.SUPPRESS)
    arguments.add_argument("--kind", help=argparse.SUPPRESS)
    arguments.add_argument("--batch-size", type=int, help=argparse.SUPPRESS)
    options = arguments.parse_args()
    if options.child:
        print(json.dumps(epoch(options.child, options)))
        return
    require_peer()
    results = [measure(kind, options) for kind in options.kinds]
    if options.json:
        setting = {key: getattr(options, key) for key in ("workers", "buffer_size", "repeats")}
        print_json({"peer": PEER, **setting, "kinds": results})
        return
    print(f"{options.workers} workers; buffer of evenstep and ODB: {options.buffer_size} samples\n")
    print("\n\n".join(table(result) for result in results))


if __name__ == "__main__":
    main()
