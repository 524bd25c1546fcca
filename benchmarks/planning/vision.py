"""Vision-language samples: is each part of the cost even on all ranks, in every step?

The samples have the sizes of real images (`--data`, a folder with mm_interleaved_docs.parquet and
lengths/chat_multi.npy), by Qwen2-VL's rule of cells:

chat        a quarter without images, the others with 1 to 4, each a real size; and a chat's text
documents   manuals and a textbook, with the images that are in them

The cost is that of Qwen2-VL-7B or -2B. Columns of the table:

whole, text, vision   sum over steps of the largest rank's cost over the mean: of both parts, of
                      the language model, of the vision tower
80 %                  the last of these over the first 80 % of the steps, before samples run out
bound                 the largest rank's vision cost in the whole epoch over the mean. No order of
                      steps has less, where samples cannot move to another rank
mixed                 share of the steps in which some ranks have an image and others have none
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.lib.report import markdown, parser, print_json, progress
from evenstep.arrays import Int64Array
from evenstep.cost import TransformerCost, VisionLanguageCost
from evenstep.plan import Even, FixedBatch, Policy, TokenBudget
from evenstep.plan.rng import generator
from evenstep.tools.simulate import deal, simulate
from evenstep.tools.simulate.images import PATCHES_PER_CELL, image_cells, rows_of_images
from evenstep.tools.simulate.measure import imbalance

TOWER = TransformerCost.vision(layers=32, hidden_size=1280, heads=16, ffn_size=5120)
MODELS = {
    "7B": TransformerCost(
        layers=28, hidden_size=3584, heads=28, kv_heads=4, ffn_size=18_944, vocab_size=152_064
    ),
    "2B": TransformerCost(
        layers=28, hidden_size=1536, heads=12, kv_heads=2, ffn_size=8960, vocab_size=151_936
    ),
}
HEADER = ["policy", "ranks", "whole", "text", "vision", "80 %", "bound", "mixed", "padding"]
HEADER += ["composition", "ms a round"]
PAGES = "mm_interleaved_docs.parquet"
LONGEST_TEXT = 8192
TOKENS = {"chat": 16_384, "documents": 32_768}
BATCH = {"chat": 20, "documents": 12}


class Sizes:
    """The real images and texts of a folder."""

    def __init__(self, folder: Path) -> None:
        import pyarrow.parquet as parquet

        names = ["image_w", "image_h", "n_tokens", "vision_tokens_cap1280"]
        table = parquet.read_table(folder / PAGES, columns=names)
        pixels = [np.concatenate(table[name].to_pylist()).astype(np.int64) for name in names[:2]]
        self.cells = image_cells(*pixels)
        self.counts = np.array([len(each) for each in table["image_w"].to_pylist()])
        tokens, images = (table[name].to_numpy().astype(np.int64) for name in names[2:])
        self.document_texts = tokens - images
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

    def documents(self, count: int, seed: int) -> Int64Array:
        """As `chat`; documents that are too long are left out."""
        rows = rows_of_images(self.cells * PATCHES_PER_CELL, self.counts)
        lengths = self.document_texts + rows[0] // PATCHES_PER_CELL
        table = np.concatenate([lengths[None], rows])
        table = table[:, lengths <= TOKENS["documents"]]
        return table[:, generator(seed).integers(0, table.shape[1], count)]


def policies(kind: str, cost: VisionLanguageCost) -> dict[str, Policy]:
    tokens, text = TOKENS[kind], cost.language
    return {
        "FixedBatch": FixedBatch(BATCH[kind]),
        "TokenBudget (ODB)": TokenBudget(tokens, cost=text),
        "Even, text only": Even(tokens, cost=text),
        "Even": Even(tokens, cost=cost),
        "Even packed, text only": Even(tokens, cost=text, packed=True),
        "Even packed": Even(tokens, cost=cost, packed=True),
    }


def row(name: str, policy: Policy, rows: Int64Array, ranks: int, cost: Any) -> dict[str, Any]:
    shards = deal(rows.shape[1], ranks)
    result = simulate(policy, [rows[:, shard] for shard in shards], cost=cost, identities=shards)
    assert result.vision_costs is not None
    assert result.steps_mixed is not None
    assert result.missing + result.duplicates == 0
    begun = result.vision_costs[: result.steps * 4 // 5]
    totals = result.vision_costs.sum(axis=0)
    planned = result.plan_us_per_sample * result.emitted / ranks / result.rounds / 1e3
    return {
        "policy": name,
        "ranks": ranks,
        "whole": result.imbalance,
        "text": result.text_imbalance,
        "vision": result.vision_imbalance,
        "80 %": imbalance(begun),
        "bound": float(totals.max() / totals.mean()),
        "mixed": result.steps_mixed / result.steps,
        "padding": result.padding,
        "composition": result.composition,
        "ms a round": planned,
    }


def shown(figures: dict[str, Any]) -> list[str]:
    form: dict[str, Callable[[Any], str]] = {
        **dict.fromkeys(HEADER, lambda value: f"{value:.3f}"),
        **dict.fromkeys(("policy", "ranks"), str),
        **dict.fromkeys(("mixed", "padding"), lambda value: f"{value:.1%}"),
        "composition": lambda value: f"{value:.2f}",
        "ms a round": lambda value: f"{value:.1f}",
    }
    return [form[name](figures[name]) for name in HEADER]


def main() -> None:
    example = "python -m benchmarks.planning.vision --ranks 8 --samples 12000 --only Even"
    arguments = parser(str(__doc__), example, repeats=1)
    add = arguments.add_argument
    add("--data", type=Path, default=Path("../shared/data"), help="folder of real sizes")
    add("--kind", choices=list(TOKENS), default="chat")
    add("--model", choices=list(MODELS), default="7B")
    add("--ranks", type=int, nargs="+", default=[8, 64, 512])
    add("--samples", type=int, nargs="+", default=[24_000, 8000, 4000], help="of each rank")
    add("--only", help="policies whose name contains this text")
    options = arguments.parse_args()
    if len(options.samples) != len(options.ranks):
        arguments.error("--samples needs a number for each of --ranks")
    if not (options.data / PAGES).exists():
        print(f"there is no {options.data / PAGES}: skipped; pass --data", file=sys.stderr)
        return
    cost = VisionLanguageCost(language=MODELS[options.model], vision=TOWER)
    sizes = Sizes(options.data)
    found = []
    for ranks, samples in zip(options.ranks, options.samples):
        rows = getattr(sizes, options.kind)(ranks * samples, options.seed)
        for name, policy in policies(options.kind, cost).items():
            if options.only is None or options.only in name:
                progress(f"{name} on {ranks} ranks")
                found.append(row(name, policy, rows, ranks, cost))
    if options.json:
        print_json({"kind": options.kind, "model": options.model, "rows": found})
    else:
        print(markdown(HEADER, [shown(figures) for figures in found]))


if __name__ == "__main__":
    main()
