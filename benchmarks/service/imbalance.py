"""How even strategies of the service make the ranks of a step: vanilla against `balance`.

Metadata only, no Ray: steps are drawn from mixtures of sources by the planner's own `Mixer`, and
planned as graphs for 64 data-parallel ranks with four micro-batches each. Text is planned for a
language model's cost, in operations; whatever follows from it is a prediction, and no time is
measured. Images with their text are in OVERLORD's Figure 12, `benchmarks.papers.overlord`.

Without `--data` the corpora are named distributions. `--data FOLDER` adds those that lie there as
Parquet, with columns `source` and `n_tokens`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from benchmarks.lib.report import Table, parser, show
from benchmarks.service.corpora import named_text, text_of
from benchmarks.service.runs import Tally, run, text_cases

RANKS = 64


def table(title: str, results: Mapping[str, Mapping[str, Tally]], measure: str) -> Table:
    """A line for each corpus: the sum over steps of the largest over that of the mean."""
    cases = list(next(iter(results.values())))
    rows = [
        [name, *(tallies[case].over_time(measure).text(3) for case in cases)]
        for name, tallies in results.items()
    ]
    return Table(["", *cases], rows, title)


def main() -> None:
    arguments = parser(
        __doc__ or "", "python -m benchmarks.service.imbalance --data FOLDER", repeats=5
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
    show(
        table("text, ranks", text, "ranks"),
        table("text, micro-batches", text, "micro-batches"),
        as_json=options.json,
    )


if __name__ == "__main__":
    main()
