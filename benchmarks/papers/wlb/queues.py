"""Table 2's rows of WLB-LLM: Algorithm 1 to the letter beside evenstep's, by what decides it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from benchmarks.lib.report import progress
from benchmarks.papers.outcome import Outcome, Table
from benchmarks.papers.wlb.algorithm_1 import Algorithm1
from benchmarks.papers.wlb.table2 import (
    CONTEXT,
    COST,
    MICRO_BATCHES,
    WLB,
    Run,
    mean,
    packed,
    planned,
    streams,
    wlb_options,
)
from evenstep.tools.simulate.packing_run import ArrivingDocuments, Trained, run_planner

SEEDS = 3
BATCHES = 240
AUTO = "`auto_thresholds`"
ROOM, ROOMS = 1.25, (1.0, 1.25, 2.0)
"""Limits of a micro-batch, in windows. The paper prints none."""
FIRSTS = (32_768, 65_536, 98_304)
"""Where the first queue may begin; the others divide what is left up to the window equally."""


def to_the_letter(thresholds: Sequence[int], room: float) -> Run:
    def run(stream: ArrivingDocuments) -> Trained:
        planner = Algorithm1(
            micro_batches=MICRO_BATCHES,
            max_tokens=int(room * CONTEXT),
            thresholds=thresholds,
            cost=COST,
        )
        return run_planner(planner, stream, end="carry")

    return run


def cases(queues: int, seed: int) -> Iterator[tuple[str, str, float, Run]]:
    """Planner, thresholds, limit in windows, and the run."""
    options = wlb_options(queues, seed)
    yield "evenstep's WLB", AUTO, ROOM, planned(options)
    for room in ROOMS:
        yield "Algorithm 1", AUTO, room, to_the_letter(options.thresholds, room)
    for first in FIRSTS:
        ends = np.linspace(first, CONTEXT, queues + 1).astype(int)[:-1].tolist()
        yield "Algorithm 1", f"from {first // 1024}K", ROOM, to_the_letter(ends, ROOM)


def wlb_rows(seed: int) -> Outcome:
    drawn = streams(BATCHES, range(seed, seed + SEEDS))
    rows, bands = [], []
    for queues, (printed, _) in WLB.items():
        degrees = []
        for planner, thresholds, room, run in cases(queues, seed + SEEDS):
            progress(f"{queues} queues, {planner}, {thresholds}, {room} windows")
            found = packed(run, drawn)
            degree = mean(found, "imbalance")
            if planner == "Algorithm 1" and room == ROOM:
                degrees.append(degree)
            row = [f"{queues}", planner, thresholds, f"{room:g}", f"{printed}", f"{degree:.3f}"]
            rows.append([*row, f"{mean(found, 'token_delay_mean'):.2f}"])
        bands.append(f"{min(degrees):.2f} to {max(degrees):.2f}")
    progress("")
    columns = ["queues", "planner", "thresholds", "limit, windows", "imbalance: paper"]
    return Outcome(
        [Table([*columns, "imbalance", "delay"], rows)],
        "1.24, 1.05, 1.05 with 1, 2, 3 queues",
        ", ".join(bands) + ", by thresholds",
    )
