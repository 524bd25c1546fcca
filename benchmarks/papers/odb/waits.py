"""Tables 3, 19 and 20 of the ODB paper: what a trainer waits for, by depth and by workers.

The real loader, its processes and one consumer that takes a fixed time for each step, as a GPU
would. Preparing a sample sleeps, as reading an image does, so that workers do not fight for the two
cores of the machine. The paper's overlap is the share of the time that the trainer does not wait.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import Dataset

import evenstep
from benchmarks.papers.odb.paper import OdbRule
from benchmarks.papers.outcome import Outcome, Table
from evenstep.tools.simulate import sample_lengths

SAMPLES, BUDGET, PREPARED, STEP = 1800, 12_288, 0.004, 0.06
"""Samples of a pass, tokens of a batch, seconds to prepare a sample and to train on a step: of
LLaVA, where a step has some 22 samples, one worker cannot keep up, and two can."""
FIRST = 10
"""Steps before the clock starts, while the first window fills."""

PAPER_DEPTH = {1024: "94.7", 2048: "100.0", 4096: "100.0", 8192: "100.0"}
PAPER_WORKERS = {0: "80.2", 1: "72.7", 2: "78.3", 4: "80.6", 8: "85.1"}
PAPER_CLAMP = {32: "0.943", 64: "0.944", 128: "0.956"}


class Prepared(Dataset[dict[str, torch.Tensor]]):
    def __init__(self, seed: int) -> None:
        self._lengths = sample_lengths("llava", SAMPLES, seed).tolist()

    def __len__(self) -> int:
        return len(self._lengths)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        time.sleep(PREPARED)
        ids = torch.zeros(self._lengths[index], dtype=torch.int64)
        return {"input_ids": ids, "labels": ids}


@dataclass(frozen=True)
class Measured:
    samples_per_second: float
    overlap: float
    """1 - time waited / time."""


def measure(seed: int, *, steps: int = 4, buffer: int = 512, **options: Any) -> Measured:
    policy = OdbRule(BUDGET)
    memory = evenstep.Memory(buffer_size=buffer, prefetch=steps)
    given: dict[str, Any] = {"num_workers": 2, "memory": memory, **options}
    loader = evenstep.DataLoader(Prepared(seed), policy=policy, group="local", **given)
    samples, waited, start = 0, 0.0, 0.0
    asked = time.perf_counter()
    for number, (_, step) in enumerate(loader.steps()):
        came = time.perf_counter()
        if number == FIRST:
            samples, waited, start = 0, 0.0, came
        waited += came - asked
        samples += step.samples
        time.sleep(STEP)
        asked = time.perf_counter()
    loader.close()
    return Measured(samples / (asked - start), 1 - waited / (asked - start))


def table_3(seed: int) -> Outcome:
    rows = []
    for steps in (1, 2, 8):
        for buffer in (256, 1024):
            found = measure(seed, steps=steps, buffer=buffer)
            row = [f"{steps}", f"{buffer:,}", f"{found.samples_per_second:.0f}"]
            rows.append([*row, f"{100 * found.overlap:.1f}"])
    paper = [[f"{depth:,}", overlap] for depth, overlap in PAPER_DEPTH.items()]
    return Outcome(
        [
            Table(["depth D", "overlap %"], paper, "The paper, 2B LLaVA"),
            Table(["`prefetch`", "`buffer_size`", "samples/s", "overlap %"], rows, "Here"),
        ],
        "94.7 to 100 % overlap",
        f"{min(float(r[3]) for r in rows):.0f} to {max(float(r[3]) for r in rows):.0f} %",
    )


def table_19(seed: int) -> Outcome:
    rows = []
    for workers, paper in PAPER_WORKERS.items():
        found = measure(seed, num_workers=workers)
        row = [f"{workers}", paper, f"{found.samples_per_second:.0f}"]
        rows.append([*row, f"{100 * found.overlap:.1f}"])
    columns = ["`num_workers`", "samples/s: paper, 2B LLaVA", "ours", "overlap %"]
    rates = [row[2] for row in rows]
    return Outcome([Table(columns, rows)], ", ".join(PAPER_WORKERS.values()), ", ".join(rates))


def table_20(seed: int) -> Outcome:
    rows = []
    for factor, paper in PAPER_CLAMP.items():
        chunks = max(factor // 32, 1)
        found = measure(seed, prefetch_factor=chunks)
        rows.append([f"{factor}", paper, f"{chunks}", f"{found.overlap:.3f}"])
    columns = ["prefetch factor: paper, samples", "overlap", "ours, chunks", "overlap"]
    spread = [float(row[3]) for row in rows]
    return Outcome([Table(columns, rows)], "0.943 to 0.956", f"{min(spread)} to {max(spread)}")
