"""Table 2's rows of WLB-LLM: Algorithm 1 to the letter, by what decides it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from benchmarks.lib.report import progress
from benchmarks.papers.outcome import Outcome, Table
from benchmarks.papers.wlb.table2 import (
    CONTEXT,
    WLB,
    Run,
    algorithm_1,
    mean,
    packed,
    streams,
    thresholds,
)

SEEDS = 3
BATCHES = 240
AUTO = "`auto_thresholds`"
ROOM, ROOMS = 1.25, (1.0, 1.25, 2.0)
"""Limits of a micro-batch, in windows. The paper prints none."""
FIRSTS = (32_768, 65_536, 98_304)
"""Where the first queue may begin; the others divide what is left up to the window equally."""


def cases(queues: int, seed: int) -> Iterator[tuple[str, str, float, Run]]:
    """Planner, thresholds, limit in windows, and the run."""
    found = thresholds(queues, seed)
    for room in ROOMS:
        yield "Algorithm 1", AUTO, room, algorithm_1(found, room)
    for first in FIRSTS:
        ends = np.linspace(first, CONTEXT, queues + 1).astype(int)[:-1].tolist()
        yield "Algorithm 1", f"from {first // 1024}K", ROOM, algorithm_1(ends)


def wlb_rows(seed: int) -> Outcome:
    drawn = streams(BATCHES, range(seed, seed + SEEDS))
    rows, bands = [], []
    for queues, (printed, _) in WLB.items():
        degrees = []
        for planner, ends, room, run in cases(queues, seed + SEEDS):
            progress(f"{queues} queues, {planner}, {ends}, {room} windows")
            found = packed(run, drawn)
            degree = mean(found, "imbalance")
            if room == ROOM:
                degrees.append(degree)
            row = [f"{queues}", planner, ends, f"{room:g}", f"{printed}", f"{degree:.3f}"]
            rows.append([*row, f"{mean(found, 'token_delay_mean'):.2f}"])
        bands.append(f"{min(degrees):.2f} to {max(degrees):.2f}")
    progress("")
    columns = ["queues", "planner", "thresholds", "limit, windows", "imbalance: paper"]
    return Outcome(
        [Table([*columns, "imbalance", "delay"], rows)],
        "1.24, 1.05, 1.05 with 1, 2, 3 queues",
        ", ".join(bands) + ", by thresholds",
    )
