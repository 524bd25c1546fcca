"""Layouts of Source Loaders, predicted: planned ones beside those of the OVERLORD paper's rule.

Sources are as uneven as in a production mixture, whose memory of open files and time of
transforms both have heavy tails (OVERLORD, Figure 5), in layouts for the same limits of memory and
of a step's time. "bound" is a number below which no layout keeps them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from benchmarks.lib.report import Table, parser, show
from benchmarks.service.layout_baselines import fewest_loaders, three_steps
from evenstep.strategy.loaders import LoaderLimits, LoadModel, SourceProfile, packed

MEBI = 1 << 20
SOURCES, SAMPLES = 300, 2048  # of a mixture, and of a step
LIMITS = LoaderLimits(step_seconds=1.0, memory=2048 * MEBI, workers=8)


def profiles(count: int, seed: int) -> list[SourceProfile]:
    """Memory from 1 MiB to 1,500, and time from 20 microseconds to 4 s: the median source takes
    some milliseconds, one in a hundred a hundred times as long."""
    rng = np.random.default_rng(seed)
    seconds = np.clip(rng.lognormal(math.log(3e-3), 1.9, count), 2e-5, 4.0)
    memory = np.clip(rng.lognormal(math.log(24), 1.3, count), 1, 1500)
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


def model_of(seed: int) -> LoadModel:
    """Slow sources are drawn from less, as mixtures do that train on mostly text."""
    made = profiles(SOURCES, seed)
    rng = np.random.default_rng(seed + 1)
    seconds = np.array([each.prepare_seconds for each in made])
    weights = rng.dirichlet(np.ones(SOURCES)) / (1 + seconds / 0.01)
    return LoadModel(made, SAMPLES * weights[None] / weights.sum(), LIMITS)


def rows_of(seed: int) -> Iterator[list[str]]:
    """A row for each layout of a mixture."""
    model = model_of(seed)
    for name, layout in {"packed": packed(model), "three_steps": three_steps(model)}.items():
        over = sum(each.memory > LIMITS.memory for each in layout.loaders)
        late = sum(each.seconds > LIMITS.seconds for each in layout.loaders)
        row = [f"{seed}", name, f"{len(layout.loaders)}", f"{fewest_loaders(model)}"]
        yield [*row, f"{layout.workers}", f"{over}", f"{late}"]


def main() -> None:
    example = "python -m benchmarks.service.partitioning --repeats 5"
    options = parser(__doc__ or "", example, repeats=3).parse_args()
    seeds = range(options.seed, options.seed + options.repeats)
    rows = [row for seed in seeds for row in rows_of(seed)]
    columns = ["mixture", "layout", "loaders", "bound", "workers", "over memory", "too slow"]
    show(Table(columns, rows, "layouts, predicted"), as_json=options.json)


if __name__ == "__main__":
    main()
