"""Images dealt one by one, and with their samples: how even is the vision encoder's work?

Samples are the real documents of `--data` (a folder with mm_interleaved_docs.parquet), drawn at
random: their images have the patches that Qwen2-VL's rule gives them. A plan deals the images of a
step to the encoders of all ranks, and the samples to the same ranks. Columns of the table:

whole, single   the encoder's imbalance, the costliest rank over the mean: images stay with their
                sample, or are dealt one by one; mean over steps, and the worst step
bound           no way to deal them is below this: of the k R + 1 costliest images, one of R ranks
                has k + 1, for any k
plan            milliseconds of processor time of a plan with images dealt one by one
metadata        KiB of a step's metadata as it is sent, without and with the sizes of images
plan size       KiB of such a plan as it is sent
"""

from __future__ import annotations

import pickle
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.lib.report import Table, parser, progress, show
from benchmarks.planning.image_cells import PATCHES_PER_CELL, image_cells
from benchmarks.planning.vision import PAGES, TOWER
from evenstep.arrays import Float64Array
from evenstep.mixture.sample_table import units_of
from evenstep.plan.rng import generator
from evenstep.strategy import DGraph, SampleTable
from evenstep.strategy.mesh import ClientPlaceTree

COSTS: dict[str, Any] = {"patches": None, "operations": TOWER}
HEADER = ["cost", "ranks", "samples", "images", "whole", "single", "bound"]
HEADER += ["plan", "metadata", "plan size"]


class Documents:
    """The images of real documents."""

    def __init__(self, folder: Path) -> None:
        import pyarrow.parquet as parquet

        table = parquet.read_table(folder / PAGES, columns=["image_w", "image_h", "n_tokens"])
        widths, heights = (table[name].to_pylist() for name in ("image_w", "image_h"))
        counts = [len(each) for each in widths]
        pixels = [np.concatenate(each).astype(np.int64) for each in (widths, heights)]
        patches = np.split(image_cells(*pixels) * PATCHES_PER_CELL, np.cumsum(counts)[:-1])
        self.images = units_of(each.tolist() for each in patches)
        self.patches = np.array([each.sum() for each in patches], np.int64)
        self.tokens = table["n_tokens"].to_numpy().astype(np.int64)

    def step(self, samples: int, seed: int) -> SampleTable:
        """Samples of a step, drawn at random."""
        rows = generator(seed).integers(0, len(self.tokens), samples)
        order, none = np.arange(samples), np.zeros(samples, np.int64)
        return SampleTable(
            sources=("pages",),
            source=none,
            position=order,
            shard=none,
            index=rows,
            lengths={"text": self.tokens[rows], "image": self.patches[rows]},
            units={"image": self.images[rows]},
        )


def planned(samples: SampleTable, ranks: int, cost: Any) -> tuple[Float64Array, float, Any]:
    """Imbalance of the encoder with whole samples, with single images, and a bound of the latter;
    seconds of the plan with single images; and that plan."""
    graph = DGraph.of(samples, ClientPlaceTree.of({"DP": ranks}), micro_batches=2)
    encoder = graph.modality("image").distribute("WORLD").balance("greedy")
    encoder = encoder if cost is None else encoder.cost(cost)
    backbone = graph.modality("text").distribute("DP").balance("greedy")
    whole = backbone.plan(subplans={"encoder": encoder}).subplans["encoder"].imbalance
    backbone = graph.modality("text").distribute("DP").balance("greedy")  # to be placed again
    begin = time.process_time()
    plan = backbone.plan(subplans={"encoder": encoder.one_by_one()})
    seconds = time.process_time() - begin
    single = plan.subplans["encoder"]
    costs = -np.sort(-single.costs)
    least = [costs[k * ranks - k : k * ranks + 1].sum() for k in range(-(-len(costs) // ranks))]
    bound = max(float(max(least)) * ranks / float(costs.sum()), 1.0)
    return np.array([whole, single.imbalance, bound]), seconds, plan


def row(documents: Documents, name: str, ranks: int, per_rank: int, steps: int) -> list[str]:
    found, times, sizes, images = [], [], [], 0
    for seed in range(steps):
        samples = documents.step(ranks * per_rank, seed)
        imbalances, seconds, plan = planned(samples, ranks, COSTS[name])
        found.append(imbalances)
        times.append(seconds)
        plain = SampleTable.unchecked(
            samples.sources,
            {n: getattr(samples, n) for n in ("source", "position", "shard", "index")},
            samples.lengths,
        )
        sizes.append([len(pickle.dumps(each, 5)) / 1024 for each in (plain, samples, plan)])
        images += len(plan.subplans["encoder"])
    mean, worst = np.mean(found, axis=0), np.max(found, axis=0)
    plain_size, size, plan_size = np.mean(sizes, axis=0)
    return [
        name,
        f"{ranks}",
        f"{per_rank} a rank",
        f"{images / steps:,.0f}",
        *(f"{m:.3f} ({w:.3f})" for m, w in zip(mean, worst)),
        f"{1000 * np.median(times):.1f}",
        f"{plain_size:,.0f}, {size:,.0f}",
        f"{plan_size:,.0f}",
    ]


def main() -> None:
    example = "python -m benchmarks.planning.single_images --ranks 8 --steps 5"
    arguments = parser(str(__doc__), example, repeats=1)
    add = arguments.add_argument
    add("--data", type=Path, default=Path("../shared/data"), help="folder of real sizes")
    add("--ranks", type=int, nargs="+", default=[8, 64, 512])
    add("--samples", type=int, nargs="+", default=[4, 16], help="of each rank in a step")
    add("--steps", type=int, default=20)
    options = arguments.parse_args()
    if not (options.data / PAGES).exists():
        print(f"there is no {options.data / PAGES}: skipped; pass --data", file=sys.stderr)
        return
    documents = Documents(options.data)
    found = []
    for name in COSTS:
        for ranks in options.ranks:
            for per_rank in options.samples:
                progress(f"{name} on {ranks} ranks, {per_rank} samples each")
                found.append(row(documents, name, ranks, per_rank, options.steps))
    show(Table(HEADER, found), as_json=options.json)


if __name__ == "__main__":
    main()
