"""Layouts of Source Loaders: planned ones beside hand-made ones, predicted and then measured.

Predicted: sources as uneven as in a production mixture, whose memory of open files and time of
transforms both have heavy tails (OVERLORD, Figure 5), in layouts for the same limits of memory and
of a step's time. "bound" is a number below which no layout keeps them. For small mixtures, HiGHS
finds the fewest loaders there can be.

Measured: a smaller mixture in real processes. Its transforms sleep, so that many processes find
room on a few cores, as they would on cores of their own. The job is profiled, planned and run; each
layout is run as fast as it goes, and then beside a trainer that takes a step's time, to see what it
waits.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.lib.report import machine, parser, print_json, progress
from benchmarks.service.fewest_loaders import optimum
from benchmarks.service.sleeping_sources import MEBI, by_hand, measured
from evenstep.strategy.loaders import (
    LoaderLayout,
    LoaderLimits,
    LoadModel,
    SourceProfile,
    fewest_loaders,
    packed,
    three_steps,
)
from evenstep.tools.report import text_table
from evenstep.tools.report.layout_plot import plot_layout

SAMPLES = 2048  # of a step, predicted


def profiles(count: int, seed: int, most: float = 1500.0) -> list[SourceProfile]:
    """Memory from 1 MiB to `most`, and time from 20 microseconds to 4 s: the median source takes
    some milliseconds, one in a hundred a hundred times as long."""
    rng = np.random.default_rng(seed)
    seconds = np.clip(rng.lognormal(math.log(3e-3), 1.9, count), 2e-5, 4.0)
    memory = np.clip(rng.lognormal(math.log(24), 1.3, count), 1, most)
    sizes = np.clip(rng.lognormal(math.log(3e4), 1.6, count), 500, 8e6)
    return [
        SourceProfile(
            source=f"source-{k:03d}",
            samples=64,
            read_seconds=2e-5 + 0.02 * float(seconds[k]),
            prepare_seconds=float(seconds[k]),
            prepare_high=2 * float(seconds[k]),
            send_seconds=1e-5 + 2e-10 * float(sizes[k]),
            handover_seconds=3e-5 + 1e-9 * float(sizes[k]),
            file_bytes=int(memory[k] * MEBI),
            sample_bytes=int(sizes[k]),
            tokens=500.0,
        )
        for k in range(count)
    ]


def model_of(
    count: int, seed: int, samples: int, limits: LoaderLimits, most: float = 1500.0
) -> LoadModel:
    """Slow sources are drawn from less, as mixtures do that train on mostly text."""
    made = profiles(count, seed, most)
    rng = np.random.default_rng(seed + 1)
    seconds = np.array([each.prepare_seconds for each in made])
    weights = rng.dirichlet(np.ones(count)) / (1 + seconds / 0.01)
    return LoadModel(made, samples * weights[None] / weights.sum(), limits)


def _with_less_room(model: LoadModel) -> LoaderLayout:
    """By the paper's rule, with as much room left for processes as they need."""
    room = float(model.limits.memory)
    while True:
        layout = three_steps(model, room)
        if room < 0.3 * model.limits.memory or not layout.shortages:
            return layout
        room *= 0.99


def predicted(options: argparse.Namespace) -> dict[str, Any]:
    rows: list[dict[str, Any]] = []
    for seed in range(options.seed, options.seed + options.repeats):
        limits = LoaderLimits(
            step_seconds=options.step, memory=options.memory * MEBI, workers=options.workers
        )
        model = model_of(options.sources, seed, SAMPLES, limits)
        begin = time.perf_counter()
        best = packed(model)
        seconds = time.perf_counter() - begin
        layouts = {
            "packed": best,
            "three_steps": three_steps(model),
            "three_steps, less room": _with_less_room(model),
            "one loader": by_hand(model, 1),
            "a loader for each source": by_hand(model, options.sources),
            "equal split": by_hand(model, len(best.loaders)),
        }
        bound = fewest_loaders(model)
        for name, layout in layouts.items():
            over = [each for each in layout.loaders if each.memory > limits.memory]
            late = [each for each in layout.loaders if each.seconds > limits.seconds]
            rows.append(
                {
                    "seed": seed,
                    "layout": name,
                    "loaders": len(layout.loaders),
                    "bound": bound,
                    "workers": layout.workers,
                    "memory_gib": layout.memory / 2**30,
                    "seconds": layout.seconds,
                    "over_memory": len(over),
                    "too_slow": len(late),
                    "planning_seconds": seconds if name == "packed" else None,
                }
            )
        if options.picture is not None and seed == options.seed:
            plot_layout(best, options.picture)
    return {"limits": vars(limits), "rows": rows}


def against_the_optimum(options: argparse.Namespace) -> list[dict[str, int]]:
    """Small mixtures, whose fewest loaders HiGHS finds."""
    limits = LoaderLimits(step_seconds=0.4, memory=450 * MEBI, workers=3)
    rows = []
    for seed in range(options.seed, options.seed + options.optima):
        progress(f"optimum {seed}")
        model = model_of(11, seed, 200, limits, most=250.0)
        layout = packed(model)
        if layout.shortages:
            continue
        paper = three_steps(model)
        rows.append(
            {
                "seed": seed,
                "optimum": optimum(model, layout),
                "packed": len(layout.loaders),
                "bound": fewest_loaders(model),
                "three_steps": len(paper.loaders),
                "three_steps_keeps_limits": int(not paper.shortages),
            }
        )
    return rows


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    names = list(rows[0])
    return text_table(names, [[_cell(row[name]) for name in names] for row in rows])


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def main() -> None:
    options = parser(
        str(__doc__), "python -m benchmarks.service.partitioning --repeats 5", repeats=3
    )
    options.add_argument("--sources", type=int, default=300)
    options.add_argument("--step", type=float, default=1.0, help="seconds of a step, predicted")
    options.add_argument("--memory", type=int, default=2048, help="MiB of a loader, predicted")
    options.add_argument("--workers", type=int, default=8, help="of a loader, predicted")
    options.add_argument("--optima", type=int, default=20, help="small mixtures for HiGHS")
    options.add_argument("--measured", type=int, default=24, help="sources that are run; 0 is none")
    options.add_argument("--samples", type=int, default=256, help="of a step that is run")
    options.add_argument("--pace", type=float, default=1.0, help="seconds of a step that is run")
    options.add_argument("--steps", type=int, default=8, help="that are measured")
    options.add_argument("--picture", type=Path, help="PNG file to draw the first layout to")
    given = options.parse_args()
    result: dict[str, Any] = {"machine": machine(), "predicted": predicted(given)}
    result["optima"] = against_the_optimum(given) if given.optima else []
    if given.measured:
        result["measured"] = measured(given)
    if given.json:
        print_json(result)
        return
    print(table(result["predicted"]["rows"]))
    if result["optima"]:
        print(table(result["optima"]))
    if given.measured:
        print(table(result["measured"]["rows"]))


if __name__ == "__main__":
    main()
