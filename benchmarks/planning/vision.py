"""Vision-language samples: is each part of the cost even on all ranks, in every step?

The samples have the sizes of real images (`--data`, a folder with mm_interleaved_docs.parquet and
lengths/chat_multi.npy), by Qwen2-VL's rule of cells: a quarter without images, the others with 1 to
4, and a chat's text. The cost is that of Qwen2-VL-7B. Columns of the table:

whole, text, vision   sum over steps of the largest rank's cost over the mean: of both parts, of
                      the language model, of the vision tower
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from benchmarks.lib.report import Table, parser, progress, show
from benchmarks.planning.image_cells import PATCHES_PER_CELL, image_cells, rows_of_images
from evenstep.arrays import Int64Array
from evenstep.cost import TransformerCost, VisionLanguageCost
from evenstep.plan import Even, FixedBatch, Policy, TokenBudget
from evenstep.plan.rng import generator
from evenstep.tools.simulate import deal, simulate

TOWER = TransformerCost.vision(layers=32, hidden_size=1280, heads=16, ffn_size=5120)
LANGUAGE = TransformerCost(
    layers=28, hidden_size=3584, heads=28, kv_heads=4, ffn_size=18_944, vocab_size=152_064
)
COST = VisionLanguageCost(language=LANGUAGE, vision=TOWER)
HEADER = ["policy", "ranks", "whole", "text", "vision", "padding", "composition"]
PAGES = "mm_interleaved_docs.parquet"
LONGEST_TEXT = 8192
TOKENS = 16_384
POLICIES: dict[str, Policy] = {
    "FixedBatch": FixedBatch(20),
    "TokenBudget (ODB)": TokenBudget(TOKENS, cost=LANGUAGE),
    "Even, text only": Even(TOKENS, cost=LANGUAGE),
    "Even": Even(TOKENS, cost=COST),
    "Even packed, text only": Even(TOKENS, cost=LANGUAGE, packed=True),
    "Even packed": Even(TOKENS, cost=COST, packed=True),
}


class Sizes:
    """The real images and texts of a folder."""

    def __init__(self, folder: Path) -> None:
        import pyarrow.parquet as parquet

        names = ["image_w", "image_h"]
        table = parquet.read_table(folder / PAGES, columns=names)
        pixels = [np.concatenate(table[name].to_pylist()).astype(np.int64) for name in names]
        self.cells = image_cells(*pixels)
        chats = np.load(folder / "lengths" / "chat_multi.npy").astype(np.int64)
        self.chat_texts = chats[chats <= LONGEST_TEXT]

    def chat(self, count: int, seed: int) -> Int64Array:
        """[4, samples] lengths, patches, images and patch pairs."""
        random = generator(seed)
        counts = np.where(random.random(count) < 0.25, 0, random.integers(1, 5, count))
        cells = random.choice(self.cells, int(counts.sum()))
        rows = rows_of_images(cells * PATCHES_PER_CELL, counts)
        texts = random.choice(self.chat_texts, count)
        return np.concatenate([(texts + rows[0] // PATCHES_PER_CELL)[None], rows])


def row(name: str, policy: Policy, rows: Int64Array, ranks: int) -> list[str]:
    shards = deal(rows.shape[1], ranks)
    result = simulate(policy, [rows[:, shard] for shard in shards], cost=COST, identities=shards)
    assert result.missing + result.duplicates == 0
    imbalances = (result.imbalance, result.text_imbalance, result.vision_imbalance)
    return [
        name,
        f"{ranks}",
        *(f"{value:.3f}" for value in imbalances),
        f"{result.padding:.1%}",
        f"{result.composition:.2f}",
    ]


def main() -> None:
    example = "python -m benchmarks.planning.vision --ranks 8 --samples 12000 --only Even"
    arguments = parser(str(__doc__), example, repeats=1)
    add = arguments.add_argument
    add("--data", type=Path, default=Path("../shared/data"), help="folder of real sizes")
    add("--ranks", type=int, nargs="+", default=[8, 64])
    add("--samples", type=int, default=8000, help="of each rank")
    add("--only", default="", help="policies whose name contains this text")
    options = arguments.parse_args()
    if not (options.data / PAGES).exists():
        print(f"there is no {options.data / PAGES}: skipped; pass --data", file=sys.stderr)
        return
    sizes = Sizes(options.data)
    found = []
    for ranks in options.ranks:
        rows = sizes.chat(ranks * options.samples, options.seed)
        for name, policy in POLICIES.items():
            if options.only in name:
                progress(f"{name} on {ranks} ranks")
                found.append(row(name, policy, rows, ranks))
    show(Table(HEADER, found), as_json=options.json)


if __name__ == "__main__":
    main()
