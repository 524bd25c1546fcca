"""Long documents of several kinds, packed for pretraining: before and after.

`--data` is a folder of .npy files, each the lengths of a corpus in tokens. Each corpus is repeated
until the stream is long enough, each time in a new random order, and `--repeats` is the number of
such streams. Figures are means over the streams.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from benchmarks.lib.report import Table, parser, progress, show
from benchmarks.planning.packers import compare
from evenstep.arrays import Int64Array
from evenstep.plan.rng import generator
from evenstep.tools.simulate.lengths import load_lengths

CORPORA = ("code_repos", "mm_interleaved_docs", "chat_multi_uncut")
CONTEXT = 32_768
MICRO_BATCHES = (4, 16)
STEPS = 200
FIGURES = {
    "imbalance": ("imbalance", ".3f"),
    "1F1B": ("makespan_ratio", ".3f"),
    "delay": ("token_delay_mean", ".2f"),
    "tokens cv": ("tokens_per_step_cv", ".3f"),
    "documents cut": ("documents_cut", ",.0f"),
    "plan ms": ("plan_ms", ".2f"),
}
"""Title -> figure of a packer, and its format."""


def stream(lengths: Int64Array, tokens: int, seed: int) -> Int64Array:
    """Lengths of whole epochs, together at least `tokens`."""
    epochs = max(1, -(-tokens // int(lengths.sum())))
    return np.concatenate([generator(seed, epoch).permutation(lengths) for epoch in range(epochs)])


def measure(lengths: Int64Array, micro_batches: int, seeds: range) -> dict[str, dict[str, float]]:
    """Name of the packer -> figures, means over the streams."""
    found: dict[str, list[dict[str, float]]] = {}
    for seed in seeds:
        documents = stream(lengths, STEPS * micro_batches * CONTEXT, seed)
        packed = compare(documents, context=CONTEXT, micro_batches=micro_batches)
        for name, figures in packed.items():
            found.setdefault(name, []).append(figures)
    return {
        name: {key: float(np.mean([row[key] for row in rows])) for key, _ in FIGURES.values()}
        for name, rows in found.items()
    }


def main() -> None:
    arguments = parser(
        __doc__ or "",
        "python -m benchmarks.planning.packing_corpora --data lengths --json",
        repeats=3,
    )
    arguments.add_argument(
        "--data", type=Path, help="folder of NAME.npy, integers: tokens of each; needed"
    )
    arguments.add_argument("--names", nargs="+", default=CORPORA, help="corpora in the folder")
    options = arguments.parse_args()
    if options.data is None:  # so that `make bench` continues
        print("skipped: give --data, a folder of corpora's lengths", file=sys.stderr)
        return
    seeds = range(options.seed, options.seed + options.repeats)
    tables = []
    for name in options.names:
        lengths = load_lengths(str(options.data / f"{name}.npy"))
        for count in MICRO_BATCHES:
            progress(f"{name}, {count} micro-batches")
            rows = [
                [packer, *(f"{row[key]:{form}}" for key, form in FIGURES.values())]
                for packer, row in measure(lengths, count, seeds).items()
            ]
            tables.append(Table(["", *FIGURES], rows, f"{name}, {count} micro-batches"))
    show(*tables, as_json=options.json)


if __name__ == "__main__":
    main()
