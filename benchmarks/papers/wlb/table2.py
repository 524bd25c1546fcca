"""Table 2 of the WLB-LLM paper: imbalance of packing methods, the paper's figures and ours.

Lengths are drawn from the distribution `pretrain-128k`, whose share of long documents is fitted to
the table's first row. `--repeats` is the number of streams. The solver's rows, which take minutes,
are the entry wlb/solver of the book.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from benchmarks.lib.report import Table, parser, progress, show
from evenstep.plan.packing import (
    DocumentCost,
    PackingOptions,
    SteadyOptions,
    auto_thresholds,
    plan_step,
)
from evenstep.tools.simulate import DISTRIBUTIONS, sample_lengths
from evenstep.tools.simulate.packing_result import PackingResult, makespan_ratio, measure
from evenstep.tools.simulate.packing_run import (
    ArrivingDocuments,
    Trained,
    run_fixed_length,
    run_original,
    run_planner,
)

LENGTHS = "pretrain-128k"
CONTEXT = 131_072
THRESHOLD_SAMPLE = 50_000
PAPER = {
    ("original", ""): (1.44, 0),
    ("fixed-length greedy", "1 global batch"): (1.41, 4),
    ("fixed-length greedy", "2 global batches"): (1.22, 5),
    ("fixed-length greedy", "4 global batches"): (1.11, 5),
    ("fixed-length greedy", "8 global batches"): (1.08, 5),
    ("WLB", "1 queue"): (1.24, 8),
    ("WLB", "2 queues"): (1.05, 20),
    ("WLB", "3 queues"): (1.05, 23),
}
"""(method, setting) -> imbalance degree and milliseconds of packing, as Table 2 prints them."""
HEADER = ["method", "setting", "imbalance: paper", "imbalance", "by time", "1F1B", "delay"]
HEADER += ["longest", "tokens cv", "plan ms: paper", "plan ms"]

Run = Callable[[ArrivingDocuments], Trained]


@dataclass(frozen=True)
class Row:
    """One method with one setting, over all streams."""

    method: str
    setting: str
    results: Sequence[PackingResult]
    statuses: Counter[str]
    printed: tuple[float, int] | None = None
    """What the paper has for it: imbalance degree and milliseconds."""

    def figures(self) -> dict[str, float]:
        """Means over the streams, and the longest delay of all."""
        names = [
            "imbalance",
            "imbalance_time_weighted",
            "token_delay_mean",
            "tokens_per_step_cv",
            "plan_ms",
        ]
        means = {name: float(np.mean([getattr(r, name) for r in self.results])) for name in names}
        means["makespan_ratio"] = float(np.mean([makespan_ratio(r.costs) for r in self.results]))
        means["token_delay_max"] = max(r.token_delay_max for r in self.results)
        means["max_tokens"] = max(r.max_tokens for r in self.results)
        return means

    def cells(self) -> list[str]:
        printed, ours = self.printed, self.figures()
        return [
            self.method,
            self.setting,
            f"{printed[0]:.2f}" if printed else "",
            f"{ours['imbalance']:.3f}",
            f"{ours['imbalance_time_weighted']:.3f}",
            f"{ours['makespan_ratio']:.3f}",
            f"{ours['token_delay_mean']:.2f}",
            f"{ours['token_delay_max']:.0f}",
            f"{ours['tokens_per_step_cv']:.3f}",
            f"{printed[1]:,}" if printed else "",
            f"{ours['plan_ms']:,.2f}",
        ]


def plural(count: int, word: str, words: str) -> str:
    return f"{count} {word if count == 1 else words}"


@dataclass(frozen=True, kw_only=True)
class Bench:
    """Everything that is the same for all methods."""

    micro_batches: int
    batches: int
    seeds: Sequence[int]
    cost: DocumentCost

    def streams(self) -> list[ArrivingDocuments]:
        tokens = self.batches * self.micro_batches * CONTEXT
        # So many documents that there is a global batch more, give or take one.
        count = int((tokens + self.micro_batches * CONTEXT) / DISTRIBUTIONS[LENGTHS].mean)
        drawn = [sample_lengths(LENGTHS, count, seed) for seed in self.seeds]
        return [
            ArrivingDocuments.of(
                lengths[lengths.cumsum() - lengths < tokens],
                context=CONTEXT,
                micro_batches=self.micro_batches,
            )
            for lengths in drawn
        ]

    def row(self, method: str, setting: str, run: Run, streams: Sequence[ArrivingDocuments]) -> Row:
        progress(f"{self.micro_batches} micro-batches, {method} {setting}")
        trained = [run(stream) for stream in streams]
        results = [measure(s, t, self.cost) for s, t in zip(streams, trained)]
        statuses: Counter[str] = Counter()
        for one in trained:
            statuses.update(one.statuses)
        return Row(method, setting, results, statuses)

    def options(self, queues: int) -> PackingOptions:
        sample = sample_lengths(LENGTHS, THRESHOLD_SAMPLE, max(self.seeds) + 1)
        thresholds = auto_thresholds(sample, context=CONTEXT, queues=queues, cost=self.cost)
        return PackingOptions(
            context=CONTEXT,
            micro_batches=self.micro_batches,
            thresholds=thresholds,
            cost=self.cost,
        )

    def table_2(self) -> list[Row]:
        streams = self.streams()
        rows = [self.row("original", "", lambda s: run_original(s, end="carry"), streams)]
        for batches in (1, 2, 4, 8):
            rows.append(self.row(*self.fixed_length(batches), streams))
        for queues in (1, 2, 3):
            options = self.options(queues)
            setting = plural(queues, "queue", "queues")
            rows.append(self.row("WLB", setting, planned(options), streams))
        steady = SteadyOptions(context=CONTEXT, micro_batches=self.micro_batches, cost=self.cost)
        rows.append(self.row("steady", "", planned(steady), streams))
        return [replace(row, printed=PAPER.get((row.method, row.setting))) for row in rows]

    def fixed_length(self, batches: int) -> tuple[str, str, Run]:
        def run(stream: ArrivingDocuments) -> Trained:
            return run_fixed_length(stream, batches, cost=self.cost, end="carry")

        return "fixed-length greedy", plural(batches, "global batch", "global batches"), run


def planned(options: PackingOptions) -> Run:
    return lambda stream: run_planner(partial(plan_step, options), stream, end="carry")


def main() -> None:
    arguments = parser(
        __doc__ or "",
        "python -m benchmarks.papers.wlb.table2",
        repeats=3,
    )
    arguments.add_argument("--batches", type=int, default=480, help="global batches of a stream")
    options = arguments.parse_args()
    bench = Bench(
        micro_batches=4,
        batches=options.batches,
        seeds=range(options.seed, options.seed + options.repeats),
        cost=DocumentCost(linear=24_576),
    )
    show(Table(HEADER, [row.cells() for row in bench.table_2()]), as_json=options.json)


if __name__ == "__main__":
    main()
