"""Long documents of several kinds, packed for pretraining: before and after.

`--data` is a folder of .npy files, each the lengths of a corpus in tokens. Each corpus is repeated
until the stream is long enough, each time in a new random order, and `--repeats` is the number of
such streams.
"""

from __future__ import annotations

import sys
from argparse import ArgumentTypeError
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.lib.report import markdown, parser, print_json, progress
from evenstep.arrays import Int64Array
from evenstep.plan.packing import DocumentCost
from evenstep.plan.rng import generator
from evenstep.tools.simulate.lengths import load_lengths
from evenstep_demos.packing.compare import Packed, compare

KINDS = {
    "code_repos": "source code and documentation files of four public repositories",
    "mm_interleaved_docs": "manuals, a textbook and statutes, with the images in them as tokens",
    "chat_multi_uncut": "chats and agent logs of many turns, and transcripts of meetings",
}
QUEUES = (2, 3)
HEADER = ["", "imbalance", "by time", "1F1B", "1F1B, ordered", "delay", "longest", "tokens cv"]
HEADER += ["cut", "plan ms"]


@dataclass(frozen=True)
class Corpus:
    name: str
    lengths: Int64Array

    def stream(self, tokens: int, seed: int) -> Int64Array:
        """Lengths of whole epochs, together at least `tokens`."""
        epochs = max(1, -(-tokens // int(self.lengths.sum())))
        orders = [generator(seed, epoch).permutation(self.lengths) for epoch in range(epochs)]
        return np.concatenate(orders)

    def facts(self, context: int) -> dict[str, Any]:
        lengths = self.lengths
        over = lengths > context
        return {
            "documents": len(lengths),
            "tokens": int(lengths.sum()),
            "median": float(np.median(lengths)),
            "mean": float(lengths.mean()),
            "p99": float(np.quantile(lengths, 0.99)),
            "longest": int(lengths.max()),
            "over_context": int(over.sum()),
            "over_context_tokens": float(lengths[over].sum() / lengths.sum()),
        }

    def row(self, context: int) -> list[str]:
        facts = self.facts(context)
        return [
            f"`{self.name}`",
            KINDS.get(self.name, ""),
            *(f"{facts[name]:,.0f}" for name in ("documents", "median", "mean", "p99", "longest")),
            f"{facts['over_context']:,} ({facts['over_context_tokens']:.0%} of tokens)",
        ]


def figures(streams: Sequence[Packed]) -> dict[str, float]:
    """Means over the streams, and the longest delay of all."""
    rows = [packed.as_dict() for packed in streams]
    names = [
        "iterations",
        "imbalance",
        "imbalance_time_weighted",
        "makespan_ratio_given_order",
        "makespan_ratio",
        "token_delay_mean",
        "tokens_per_step_cv",
        "plan_ms",
        "last_iterations",
    ]
    result = {name: float(np.mean([row[name] for row in rows])) for name in names}
    result["token_delay_max"] = max(row["token_delay_max"] for row in rows)
    cut = sum(row["documents_cut"] for row in rows)
    result["cut"] = cut / sum(packed.documents for packed in streams)
    return result


def measure(
    corpus: Corpus, context: int, micro_batches: int, steps: int, seeds: range, linear: int
) -> dict[str, dict[str, float]]:
    """Name of the packer -> figures."""
    streams = []
    for seed in seeds:
        progress(f"{corpus.name}, {micro_batches} micro-batches, stream {seed}")
        streams.append(
            compare(
                corpus.stream(steps * micro_batches * context, seed),
                context=context,
                micro_batches=micro_batches,
                queues=QUEUES,
                cost=DocumentCost(linear=linear),
            )
        )
    return {same[0].name: figures(same) for same in zip(*streams)}


def cells(name: str, row: dict[str, float]) -> list[str]:
    return [
        name,
        f"{row['imbalance']:.3f}",
        f"{row['imbalance_time_weighted']:.3f}",
        f"{row['makespan_ratio_given_order']:.3f}",
        f"{row['makespan_ratio']:.3f}",
        f"{row['token_delay_mean']:.2f}",
        f"{row['token_delay_max']:.0f}",
        f"{row['tokens_per_step_cv']:.3f}",
        f"{row['cut']:.1%}",
        f"{row['plan_ms']:.2f}",
    ]


def folder(text: str) -> Path:
    if not Path(text).is_dir():
        raise ArgumentTypeError(f"{text} is not a folder")
    return Path(text)


def main() -> None:
    arguments = parser(
        __doc__ or "",
        "python -m benchmarks.planning.packing_corpora --data lengths --json",
        repeats=3,
    )
    arguments.add_argument(
        "--data", type=folder, help="folder of NAME.npy, integers: tokens of each; needed"
    )
    arguments.add_argument(
        "--names", nargs="+", default=list(KINDS), help=f"corpora; default: {' '.join(KINDS)}"
    )
    arguments.add_argument("--context", type=int, default=32_768, help="tokens of a window")
    arguments.add_argument("--micro-batches", type=int, nargs="+", default=[4, 16])
    arguments.add_argument("--steps", type=int, default=200, help="of a stream, at least")
    arguments.add_argument("--linear", type=int, default=24_576, help="cost of a token")
    options = arguments.parse_args()
    if options.data is None:  # so that `make bench` continues
        print("skipped: give --data, a folder of corpora's lengths", file=sys.stderr)
        return
    seeds = range(options.seed, options.seed + options.repeats)
    corpora = [
        Corpus(name, load_lengths(str(options.data / f"{name}.npy"))) for name in options.names
    ]
    results = {
        (corpus.name, count): measure(
            corpus, options.context, count, options.steps, seeds, options.linear
        )
        for corpus in corpora
        for count in options.micro_batches
    }
    progress("")
    if options.json:
        print_json(
            {
                "context": options.context,
                "corpora": {corpus.name: corpus.facts(options.context) for corpus in corpora},
                "packers": {f"{name}, {count}": rows for (name, count), rows in results.items()},
            }
        )
        return
    header = [
        "corpus",
        "what it holds",
        "documents",
        "median",
        "mean",
        "p99",
        "longest",
        "over window",
    ]
    parts = {"corpora": markdown(header, [corpus.row(options.context) for corpus in corpora])}
    for (name, count), rows in results.items():
        table = markdown(HEADER, [cells(packer, row) for packer, row in rows.items()])
        parts[f"{name}, {count}"] = table
    print("\n\n".join(f"{name}:\n\n{part}" for name, part in parts.items()))


if __name__ == "__main__":
    main()
