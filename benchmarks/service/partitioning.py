"""Layouts of Source Loaders, predicted: planned ones beside hand-made ones.

Sources are as uneven as in a production mixture, whose memory of open files and time of
transforms both have heavy tails (OVERLORD, Figure 5), in layouts for the same limits of memory and
of a step's time. "bound" is a number below which no layout keeps them. For small mixtures, HiGHS
finds the fewest loaders there can be.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.lib.report import Table, parser, progress, show
from benchmarks.service.fewest_loaders import optimum
from benchmarks.service.layout_baselines import fewest_loaders, three_steps
from evenstep.strategy.loaders import (
    LoaderLayout,
    LoaderLimits,
    LoadModel,
    SourceProfile,
    packed,
)
from evenstep.strategy.loaders.load_model import Piece

MEBI = 1 << 20
SAMPLES = 2048  # of a step
LIMITS = LoaderLimits(step_seconds=1.0, memory=2048 * MEBI, workers=8)


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


def by_hand(model: LoadModel, loaders: int) -> LoaderLayout:
    """Whole sources, dealt out in turn."""
    groups = [range(k, len(model.sources), loaders) for k in range(loaders)]
    return LoaderLayout.of(model, [[Piece(s, 1) for s in group] for group in groups])


def predicted(options: argparse.Namespace) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for seed in range(options.seed, options.seed + options.repeats):
        model = model_of(options.sources, seed, SAMPLES, LIMITS)
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
            over = [each for each in layout.loaders if each.memory > LIMITS.memory]
            late = [each for each in layout.loaders if each.seconds > LIMITS.seconds]
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
    return rows


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


def table(rows: Sequence[Mapping[str, Any]], title: str) -> Table:
    names = list(rows[0])
    return Table(names, [[_cell(row[name]) for name in names] for row in rows], title)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def main() -> None:
    options = parser(
        str(__doc__), "python -m benchmarks.service.partitioning --repeats 5", repeats=3
    )
    options.add_argument("--sources", type=int, default=300)
    options.add_argument("--optima", type=int, default=20, help="small mixtures for HiGHS")
    given = options.parse_args()
    tables = [table(predicted(given), "layouts, predicted")]
    if given.optima:
        tables.append(table(against_the_optimum(given), "small mixtures"))
    show(*tables, as_json=given.json)


if __name__ == "__main__":
    main()
