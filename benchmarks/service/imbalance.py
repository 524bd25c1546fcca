"""How even strategies of the service make the ranks of a step: vanilla against `balance`.

Metadata only, no Ray: steps are drawn from mixtures of sources by the planner's own `Mixture`, and
planned as graphs for 4 to 64 data-parallel ranks with four micro-batches each. Text is planned for
a language model's cost; images with their text for an encoder on every rank and a backbone on
data-parallel ranks. The cost is that of the paper's models, in operations; whatever follows from
it is a prediction, and no time is measured.

Without `--data` the corpora are named distributions. `--data FOLDER` adds those that lie there as
Parquet, with columns `source` and `n_tokens`.
"""

from __future__ import annotations

import sys
from argparse import ArgumentTypeError
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.lib.report import markdown, parser, print_json, progress
from benchmarks.service.corpora import (
    MOST_CELLS,
    VIT_1B,
    VIT_2B,
    Corpus,
    captioned,
    named_text,
    pages_of,
    text_of,
)
from benchmarks.service.runs import (
    BASES,
    BOUND,
    IN_ORDER,
    MICRO_BATCHES,
    Tally,
    run_text,
    run_vision,
    widest,
)
from evenstep.tools.simulate import sample_lengths

RANKS = (4, 8, 16, 32, 64)
PAGES_CONTEXT = 32_768
SETTINGS = (
    (4096, MOST_CELLS, "ViT-1B", VIT_1B),
    (16_384, MOST_CELLS, "ViT-1B", VIT_1B),
    (4096, 4096, "ViT-1B", VIT_1B),
    (8192, 8192, "ViT-1B", VIT_1B),
    (16_384, 16_384, "ViT-1B", VIT_1B),
    (16_384, 16_384, "ViT-2B", VIT_2B),
)
"""Of images with captions: tokens of a micro-batch, cells of the largest image, and the encoder."""
PAPER = {4096: 1.71, 8192: 2.63, 16_384: 3.09}
"""Section 7.2: mean gain in throughput by context, of all models and both data sets."""
BEST_TEXT, BEST_VISION = "karmarkar_karp, both", "separately, karmarkar_karp both"
DRAWS = 1_000_000
ByRanks = dict[int, dict[str, Tally]]


def label(context: int, most_cells: int, encoder: str) -> str:
    return f"`coyo`, {context:,} tokens, images up to {most_cells:,} cells, {encoder}"


def overview(corpora: Sequence[Corpus]) -> str:
    rows: list[list[str]] = []
    for corpus in corpora:
        facts = corpus.facts()
        numbers = ("context", "sources", "samples", "median", "mean", "p99", "longest", "cut")
        row = [f"`{corpus.name}`", corpus.what, *(f"{facts[name]:,.0f}" for name in numbers)]
        if row not in rows:  # another encoder makes no other corpus
            rows.append(row)
    head = ["corpus", "what it holds", "tokens of a micro-batch", "sources", "samples"]
    return markdown([*head, "median", "mean", "p99", "longest", "cut"], rows)


def by_ranks(results: ByRanks, measure: str) -> str:
    """Over time, for each number of data-parallel ranks."""
    cases = next(iter(results.values()))
    rows = [
        [case, *(f"{tallies[case].over_time(measure).median:.3f}" for tallies in results.values())]
        for case in cases
    ]
    return markdown(["", *(f"DP={dp}" for dp in results)], rows)


def in_detail(tallies: Mapping[str, Tally], of_step: str) -> str:
    """
    Args:
        of_step: the measure that is time.
    """
    measures = next(iter(tallies.values())).measures
    rows = []
    for case, tally in tallies.items():
        cells = [case]
        for measure in measures:
            steps = tally.steps(measure)
            cells += [tally.over_time(measure).text(3)]
            if measure == of_step:
                cells += [f"{quantile(steps, 50):.3f}", f"{quantile(steps, 95):.3f}"]
        for base in BASES:
            cells.append("" if case == base else tally.speed_up(tallies[base], of_step).text(2))
        rows.append(cells)
    head = [""]
    for measure in measures:
        head += [measure, "median", "p95"] if measure == of_step else [measure]
    return markdown([*head, "against arrival", "against order"], rows)


def in_short(results: Mapping[str, ByRanks], measure: str, best: str) -> str:
    """A line for each corpus, at the largest number of ranks."""
    ranks = max(next(iter(results.values())))
    cases = [case for case in next(iter(results.values()))[ranks] if case != BOUND]
    rows = []
    for name, by in results.items():
        tallies = by[ranks]
        gains = [tallies[best].speed_up(tallies[base], measure).text(2) for base in BASES]
        cells = [f"{tallies[case].over_time(measure).median:.3f}" for case in cases]
        rows.append([name, *cells, *gains])
    return markdown(["", *cases, *(f"gain, {base}" for base in BASES)], rows)


def worst(results: Mapping[str, ByRanks], case: str) -> str:
    found = [of[case].over_time("ranks").median for by in results.values() for of in by.values()]
    return f"{max(found):.3f}"


def skew() -> str:
    """Figures of `coyo-text` beside the published ones."""
    rows = [["published", "98.23 %", "9.3 %", "17.24"]]
    for seed in range(3):
        lengths = np.sort(sample_lengths("coyo-text", DRAWS, seed))
        longest = lengths[DRAWS - round(0.0162 * DRAWS) :]
        short, share = (lengths <= 64).mean(), longest.sum() / lengths.sum()
        rows.append([f"seed {seed}", f"{short:.2%}", f"{share:.1%}", f"{lengths.mean():.2f}"])
    head = ["", "texts of at most 64 tokens", "tokens in the longest 1.62 %", "mean"]
    return markdown(
        head, [[cell.replace("%", " %").replace("  ", " ") for cell in r] for r in rows]
    )


def beside_paper(results: Mapping[str, ByRanks]) -> str:
    rows = []
    for context, most, encoder, _ in SETTINGS:
        by = results[label(context, most, encoder)]
        tallies = by[max(by)]
        gains = [
            tallies[case].speed_up(tallies[IN_ORDER], "whole").text(2)
            for case in ("separately, greedy inter", BEST_VISION, BOUND)
        ]
        rows.append([f"{context:,}", f"{most:,}", encoder, f"{PAPER[context]:.2f}", *gains])
    head = ["tokens", "cells of an image", "encoder", "paper, mean"]
    return markdown([*head, "its way, predicted", "both levels, predicted", "bound"], rows)


def quantile(values: npt.NDArray[Any], percent: float) -> float:
    return float(np.percentile(values, percent))


def as_dict(results: ByRanks, of_step: str) -> dict[str, Any]:
    return {
        str(dp): {
            case: {
                **{
                    measure: {
                        "over_time": tally.over_time(measure).as_dict(),
                        "median": quantile(tally.steps(measure), 50),
                        "p95": quantile(tally.steps(measure), 95),
                    }
                    for measure in tally.measures
                },
                "predicted_speed_up": {
                    base: tally.speed_up(tallies[base], of_step).as_dict() for base in BASES
                },
            }
            for case, tally in tallies.items()
        }
        for dp, tallies in results.items()
    }


def folder(path: str) -> Path:
    if not Path(path).is_dir():
        raise ArgumentTypeError(f"{path} is not a folder")
    return Path(path)


def main() -> None:
    arguments = parser(
        __doc__ or "",
        "python -m benchmarks.service.imbalance --data FOLDER",
        repeats=5,
    )
    arguments.add_argument("--data", type=folder, help="folder of corpora as Parquet")
    arguments.add_argument("--steps", type=int, default=3, help="of each measurement")
    options = arguments.parse_args()
    if options.data is None:
        print("only named distributions: --data FOLDER adds corpora", file=sys.stderr)
    seeds = range(options.seed, options.seed + options.repeats)
    text = named_text()
    vision = {
        label(context, most, name): captioned(context, most, encoder)
        for context, most, name, encoder in SETTINGS
    }
    if options.data is not None:
        text += text_of(options.data)
        pages = pages_of(options.data, PAGES_CONTEXT, VIT_1B)
        if pages is not None:
            vision[f"`{pages.name}`, {PAGES_CONTEXT:,} tokens, ViT-1B"] = pages
    of_text = {
        corpus.name: {dp: run_text(corpus, dp, options.steps, seeds) for dp in RANKS}
        for corpus in text
    }
    of_vision = {
        name: {dp: run_vision(corpus, name, dp, options.steps, seeds) for dp in RANKS}
        for name, corpus in vision.items()
    }
    differ = widest(captioned(4096, 4096, VIT_1B), RANKS[0], options.steps, seeds)
    progress("")
    if options.json:
        print_json(
            {
                "micro_batches": MICRO_BATCHES,
                "steps": options.steps * options.repeats,
                "corpora": {c.name: c.facts() for c in text},
                "image_and_text": {name: c.facts() for name, c in vision.items()},
                "largest_over_smallest": {base: of.as_dict() for base, of in differ.items()},
                "text": {name: as_dict(r, "ranks") for name, r in of_text.items()},
                "vision": {name: as_dict(r, "whole") for name, r in of_vision.items()},
            }
        )
        return
    parts = {
        "text": in_short(
            {f"`{name}`": results for name, results in of_text.items()}, "ranks", BEST_TEXT
        ),
        "vision": in_short(of_vision, "whole", BEST_VISION),
        "skew": skew(),
        "beside the paper": beside_paper(of_vision),
        "corpora of text": overview(text),
        "corpora of images": overview(list(vision.values())),
    }
    for results, measure in ((of_text, "ranks"), (of_vision, "whole")):
        for name, by in results.items():
            plain = name.replace("`", "")
            parts[f"{plain}, by ranks"] = by_ranks(by, measure)
            parts[f"{plain}, in detail"] = in_detail(by[RANKS[-1]], measure)
    print("\n\n".join(f"{name}:\n\n{part}" for name, part in parts.items()))
    print(
        f"imbalance of text is at most {worst(of_text, 'greedy, both')} with greedy and "
        f"{worst(of_text, BEST_TEXT)} with karmarkar_karp; without balance micro-batches differ by "
        + " or ".join(f"{of.text(1)} times ({base})" for base, of in differ.items()),
        file=sys.stderr,
    )


if __name__ == "__main__":
    main()
