"""Table 2's rows of WLB-LLM: Algorithm 1 to the letter beside evenstep's, and what goes wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.lib.report import progress
from benchmarks.papers.outcome import Outcome, Table
from benchmarks.papers.wlb.algorithm_1 import Algorithm1
from benchmarks.papers.wlb.table2 import CONTEXT, PAPER, Bench, planned, plural
from evenstep.plan.packing import DocumentCost
from evenstep.tools.simulate.packing_result import PackingResult, measure
from evenstep.tools.simulate.packing_run import ArrivingDocuments, run_planner

SEEDS = 3
BATCHES = 240
COST = DocumentCost(linear=24_576)
ROOM, ROOMS = 1.25, (1.0, 1.25, 2.0)
"""Limits of a micro-batch, in windows. The paper prints none."""
FIRSTS = (32_768, 65_536, 98_304)
"""Where the first queue may begin; the others divide what is left up to the window equally."""


@dataclass(frozen=True, kw_only=True)
class Packed:
    """One planner over all streams."""

    results: Sequence[PackingResult]
    again: float = 0.0
    """Documents that `Remained_Doc`, never emptied, would add to a step, mean."""

    def mean(self, figure: str) -> float:
        return float(np.mean([getattr(result, figure) for result in self.results]))

    def cells(self) -> list[str]:
        return [
            f"{self.mean('imbalance'):.3f}",
            f"{self.mean('imbalance_time_weighted'):.3f}",
            f"{self.mean('token_delay_mean'):.2f}",
            f"{max(result.token_delay_max for result in self.results)}",
            f"{self.mean('documents_waiting'):.0f}",
        ]


def to_the_letter(
    streams: Sequence[ArrivingDocuments], thresholds: Sequence[int], room: float
) -> Packed:
    results, again = [], []
    for stream in streams:
        planner = Algorithm1(
            micro_batches=stream.micro_batches,
            max_tokens=int(room * CONTEXT),
            thresholds=thresholds,
            cost=COST,
        )
        results.append(measure(stream, run_planner(planner, stream, end="carry"), COST))
        again.append(planner.trained_again / stream.complete)
    return Packed(results=results, again=float(np.mean(again)))


def choices(bench: Bench, queues: int) -> dict[str, tuple[int, ...]]:
    """Thresholds, by what is said of them."""
    found = {"`auto_thresholds`": bench.options(queues).thresholds}
    for first in FIRSTS:
        ends = np.linspace(first, CONTEXT, queues + 1).astype(int)[:-1].tolist()
        found[f"from {first // 1024}K"] = tuple(ends)
    return found


def wlb_rows(seed: int) -> Outcome:
    bench = Bench(micro_batches=4, batches=BATCHES, seeds=range(seed, seed + SEEDS), cost=COST)
    streams = bench.streams()
    rows, harms = [], []
    in_band: dict[int, str] = {}
    for queues in (1, 2, 3):
        setting = plural(queues, "queue", "queues")
        printed = PAPER["WLB", setting][0]
        progress(f"evenstep, {setting}")
        own = [measure(s, planned(bench.options(queues))(s), COST) for s in streams]
        cells = Packed(results=own).cells()
        rows.append([setting, "evenstep's WLB", "`auto_thresholds`", f"{printed}", *cells])
        degrees = []
        for name, thresholds in choices(bench, queues).items():
            auto = name == "`auto_thresholds`"
            for room in ROOMS if auto else (ROOM,):
                progress(f"Algorithm 1, {setting}, {name}, {room} windows")
                packed = to_the_letter(streams, thresholds, room)
                cells = packed.cells()
                if room == ROOM:
                    rows.append([setting, "Algorithm 1", name, f"{printed}", *cells])
                    degrees.append(packed.mean("imbalance"))
                if auto:
                    harms.append([setting, f"{room:g}", *cells, f"{packed.again:,.1f}"])
        in_band[queues] = f"{min(degrees):.2f} to {max(degrees):.2f}"
    progress("")
    figures = ["imbalance", "by time", "delay", "longest", "left waiting"]
    return Outcome(
        [
            Table(
                ["", "planner", "thresholds", "imbalance: paper", *figures],
                rows,
                f"By thresholds, with micro-batches of up to {ROOM:g} windows",
            ),
            Table(
                ["", "limit, windows", *figures, "would be trained on again, per step"],
                harms,
                "Algorithm 1 by its limit, thresholds of `auto_thresholds`",
            ),
        ],
        "1.24, 1.05, 1.05 with 1, 2, 3 queues",
        ", ".join(in_band.values()) + ", by thresholds",
    )
