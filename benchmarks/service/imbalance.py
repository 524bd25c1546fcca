"""How even strategies of the service make the ranks of a step: vanilla against `balance`.

Metadata only, no Ray: steps are drawn from mixtures of sources by the planner's own `Mixer`, and
planned as graphs for 64 data-parallel ranks with four micro-batches each. Text is planned for a
language model's cost; images with their text for an encoder on every rank and a backbone on
data-parallel ranks. The cost is that of the paper's models, in operations; whatever follows from
it is a prediction, and no time is measured.

Without `--data` the corpora are named distributions. `--data FOLDER` adds those that lie there as
Parquet, with columns `source` and `n_tokens`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from benchmarks.lib.report import Table, parser, show
from benchmarks.service.corpora import VIT_1B, captioned, named_text, text_of
from benchmarks.service.runs import TP, Tally, run, text_cases, vision_cases
from evenstep.tools.simulate import sample_lengths

RANKS = 64
CONTEXT, MOST_CELLS = 4096, 4096
"""Of images with captions: tokens of a micro-batch, and cells of the largest image."""
DRAWS = 1_000_000


def table(title: str, results: Mapping[str, Mapping[str, Tally]], measure: str) -> Table:
    """A line for each corpus: the sum over steps of the largest over that of the mean."""
    cases = list(next(iter(results.values())))
    rows = [
        [name, *(tallies[case].over_time(measure).text(3) for case in cases)]
        for name, tallies in results.items()
    ]
    return Table(["", *cases], rows, title)


def skew() -> Table:
    """Figures of `coyo-text` beside the published ones."""
    rows = [["published", "98.23 %", "9.3 %", "17.24"]]
    for seed in range(3):
        lengths = np.sort(sample_lengths("coyo-text", DRAWS, seed))
        longest = lengths[DRAWS - round(0.0162 * DRAWS) :]
        short, share = 100 * (lengths <= 64).mean(), 100 * longest.sum() / lengths.sum()
        rows.append([f"seed {seed}", f"{short:.2f} %", f"{share:.1f} %", f"{lengths.mean():.2f}"])
    head = ["", "texts of at most 64 tokens", "tokens in the longest 1.62 %", "mean"]
    return Table(head, rows, "skew of `coyo-text`")


def main() -> None:
    arguments = parser(
        __doc__ or "",
        "python -m benchmarks.service.imbalance --data FOLDER",
        repeats=5,
    )
    arguments.add_argument("--data", type=Path, help="folder of corpora as Parquet")
    arguments.add_argument("--steps", type=int, default=3, help="of each measurement")
    options = arguments.parse_args()
    seeds = range(options.seed, options.seed + options.repeats)
    corpora = named_text()
    if options.data is None:
        print("only named distributions: --data FOLDER adds corpora", file=sys.stderr)
    else:
        corpora += text_of(options.data)
    text = {
        corpus.name: run(corpus, text_cases(), {"DP": RANKS}, options.steps, seeds)
        for corpus in corpora
    }
    pictures = captioned(CONTEXT, MOST_CELLS, VIT_1B)
    vision = {
        f"{pictures.name}, images up to {MOST_CELLS:,} cells": run(
            pictures, vision_cases(), {"DP": RANKS, "TP": TP}, options.steps, seeds
        )
    }
    show(
        table("text, ranks", text, "ranks"),
        table("text, micro-batches", text, "micro-batches"),
        table("images and captions", vision, "whole"),
        skew(),
        as_json=options.json,
    )


if __name__ == "__main__":
    main()
