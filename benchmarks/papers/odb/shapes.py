"""Tables 13 and 14 of the ODB paper: shapes of updates, each printed figure beside evenstep's.

Shapes are those of whole epochs over lengths drawn from the named distributions, with the paper's
sample counts and settings (see `paper.py`). Where it prints no setting, one is chosen to be close:
the batch sizes of Standard and HFG, and from a list the budget of GMT and BMT whose tokens per
update come closest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from benchmarks.lib.epoch import Epoch, in_order
from benchmarks.papers.odb.paper import BUFFER, CELLS, RANKS, Cell, OdbRule, Shape
from benchmarks.papers.outcome import Outcome, Table
from evenstep.arrays import Int64Array
from evenstep.plan import Even, FixedBatch, Groups, Policy
from evenstep.tools.simulate import deal, sample_lengths, simulate
from evenstep.tools.simulate.yardsticks import bucketed_max_tokens, length_grouped, max_tokens

Form = Callable[[Int64Array, int, int, int], list[Groups]]
GRID = (1024, 1280, 1536, 2048, 3072, 4096, 6144, 8192, 10_240, 12_288, 14_336, 16_384, 24_576)


@dataclass(frozen=True)
class Row:
    """One method in one cell."""

    method: str
    setting: str
    policy: str
    samples: int
    epoch: Epoch
    paper: Shape | None = None

    def cells(self) -> list[str]:
        epoch, paper = self.epoch, self.paper
        samples = self.samples / epoch.steps
        return [
            self.method,
            f"`{self.policy}`" if self.policy else "",
            self.setting,
            f"{paper.updates:,}" if paper else "",
            f"{epoch.steps:,}",
            f"{paper.samples:.2f}" if paper else "",
            f"{samples:.2f}",
            _percent(samples / paper.samples - 1) if paper else "",
            f"{paper.tokens:,}" if paper else "",
            f"{epoch.tokens_per_step:,.0f}",
            _percent(epoch.tokens_per_step / paper.tokens - 1) if paper else "",
            f"{paper.padding:.1f}" if paper else "",
            f"{100 * epoch.padding:.1f}",
            f"{epoch.imbalance:.3f}",
        ]


def _percent(difference: float) -> str:
    return f"{difference:+.1%}".replace("-0.0%", "0.0%").replace("+0.0%", "0.0%")


HEADER = ["method", "evenstep", "setting", "updates: paper", "ours", "samples/update: paper"]
HEADER += ["ours", "diff", "tokens/update: paper", "ours", "diff", "padding %: paper", "ours"]
HEADER += ["imbalance: ours"]


def rows(cell: Cell, seed: int) -> Iterator[Row]:
    """Table 13 or 14 of one cell, and `Even`."""
    drawn = sample_lengths(cell.distribution, cell.trained, seed)
    shares = deal(len(drawn), RANKS, seed)
    arrivals = [drawn[share] for share in shares]

    def row(method: str, setting: str, policy: str, epoch: Epoch) -> Row:
        return Row(method, setting, policy, len(drawn), epoch, cell.rows.get(method))

    def offline(form: Form, size: int) -> Epoch:
        return Epoch.of_groups(form(drawn, RANKS, seed, size), [drawn] * RANKS)

    def online(policy: Policy) -> Epoch:
        result = simulate(policy, arrivals, buffer_size=BUFFER, seed=seed, identities=shares)
        return Epoch.of_result(result)

    def closest(form: Form, tokens: int) -> tuple[int, Epoch]:
        tried = [(budget, offline(form, budget)) for budget in GRID]
        return min(tried, key=lambda pair: abs(math.log(pair[1].tokens_per_step / tokens)))

    fixed = in_order(FixedBatch(cell.batch_size), arrivals)
    standard = Epoch.of_groups(fixed, arrivals)
    yield row("Standard", f"batch {cell.batch_size}", "FixedBatch", standard)
    budget = f"budget {cell.max_tokens:,}"
    yield row("ODB", budget, "TokenBudget", online(OdbRule(cell.max_tokens)))
    for method, form in (("GMT-oracle", max_tokens), ("BMT-oracle", bucketed_max_tokens)):
        found, epoch = closest(form, cell.rows[method].tokens)
        yield row(method, f"budget {found:,} (inferred)", form.__name__, epoch)
    size = cell.grouped_batch_size
    grouped = offline(length_grouped, size)
    yield row("HFG-oracle", f"batch {size}", length_grouped.__name__, grouped)
    limit = max(cell.max_tokens, int(drawn.max()))
    yield row("", f"budget {limit:,}", "Even", online(Even(limit)))


def agreement(measured: Sequence[tuple[Cell, list[Row]]]) -> list[list[str]]:
    """By method, the largest differences from the paper over all cells."""
    lines = []
    for method in CELLS[0].rows:
        same = [row for _, found in measured for row in found if row.method == method and row.paper]
        ratios = {
            "samples": [r.samples / r.epoch.steps / r.paper.samples - 1 for r in same if r.paper],
            "tokens": [r.epoch.tokens_per_step / r.paper.tokens - 1 for r in same if r.paper],
            "padding": [100 * r.epoch.padding - r.paper.padding for r in same if r.paper],
        }
        worst = {name: max(values, key=abs) for name, values in ratios.items()}
        lines.append(
            [
                method,
                _percent(worst["samples"]),
                _percent(worst["tokens"]),
                f"{worst['padding']:+.1f}",
            ]
        )
    return lines


def tables_13_14(seed: int) -> Outcome:
    measured = [(cell, list(rows(cell, seed))) for cell in CELLS]
    summary = ["method", "samples/update", "tokens/update", "padding, points"]
    worst = agreement(measured)
    tables = [Table(summary, worst, "Largest differences over the six cells, evenstep - paper")]
    for cell, found in measured:
        table = 13 if cell.model == "8B" else 14
        title = f"{cell.data}, {cell.model} (Table {table}), {cell.trained:,} samples"
        tables.append(Table(HEADER, [row.cells() for row in found], title))
    (odb,) = (row for row in worst if row[0] == "ODB")
    return Outcome(
        tables,
        "samples, tokens and padding of ODB",
        f"{odb[1]}, {odb[2]} and {odb[3]} points at most",
    )
