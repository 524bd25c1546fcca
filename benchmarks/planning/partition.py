"""Dividing weighted documents among bins, beside public packages that divide numbers.

Documents are lognormal, of 1,024 tokens in the middle, with sigma 1.4, from 16 to 16,384 tokens, so
that none is heavier than a bin's mean; each weighs length x (length + 8,192). What is printed for
each number of documents and bins is the time, and the heaviest bin's load over `lower_bound`, which
no partition can be below.

    evenstep            `partition`
    numberpartitioning  its Karmarkar-Karp, in pure Python, up to 700,000 documents x bins
    binpacking          its `to_constant_bin_number`, up to 60 million

A second table has 60 batches of 256 documents that must stay below a cap of tokens, in as many bins
as `bins_needed` says: how many batches exceed it, by how much the worst does, and the mean of
heaviest bin over the lower bound that holds under the cap. The packages know no cap, which is how
they come below that.

A package that is not installed is left out: pip install numberpartitioning binpacking
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np

from benchmarks.lib.report import Spread, parser, print_json, progress
from evenstep.arrays import Int64Array
from evenstep.plan.partition import bins_needed, partition
from evenstep.plan.partition.bounds import lower_bound
from evenstep.tools.report import text_table

Divide = Callable[[Int64Array, int], Sequence[int]]
"""Weights and bins -> load of each bin."""

SIZES = [(256, 8), (1024, 16), (1024, 64), (10_000, 64), (100_000, 512), (100_000, 4096)]
CAPS = [(1.4, 32_768), (1.0, 16_384), (1.4, 131_072)]
BATCHES = 60
LONGEST = 16_384


@dataclass(frozen=True)
class Contender:
    name: str
    divide: Divide
    equal_counts: bool = False
    most: int = 1 << 62
    """Documents x bins."""


def contenders() -> list[Contender]:
    def ours(**options: Any) -> Divide:
        return lambda costs, bins: partition(costs, bins, **options).loads.tolist()

    result = [
        Contender("evenstep", ours()),
        Contender("evenstep, equal counts", ours(equal_counts=True), equal_counts=True),
    ]
    if find_spec("numberpartitioning"):
        from numberpartitioning import karmarkar_karp

        result.append(
            Contender(
                "numberpartitioning",
                lambda costs, bins: karmarkar_karp(costs.tolist(), bins).sizes,
                most=700_000,
            )
        )
    if find_spec("binpacking"):
        from binpacking import to_constant_bin_number

        result.append(
            Contender(
                "binpacking",
                lambda costs, bins: [sum(b) for b in to_constant_bin_number(costs.tolist(), bins)],
                most=60_000_000,
            )
        )
    return result


def documents(count: int, sigma: float, longest: int, seed: int) -> Int64Array:
    lengths = np.exp(np.random.default_rng(seed).normal(np.log(1024), sigma, count))
    return lengths.astype(np.int64).clip(16, longest)


def weigh(lengths: Int64Array) -> Int64Array:
    return lengths * (lengths + 8192)


def timed(entry: Contender, count: int, bins: int, repeats: int, seed: int) -> dict[str, Any]:
    times, above = [], []
    for repeat in range(repeats + 1):
        costs = weigh(documents(count, 1.4, LONGEST, seed + repeat))
        begin = time.perf_counter()
        loads = entry.divide(costs, bins)
        times.append(1e3 * (time.perf_counter() - begin))
        above.append(max(loads) / lower_bound(costs, bins, equal_counts=entry.equal_counts))
    # The first run may compile.
    return {"ms": Spread.of(times[1:]), "over_bound": float(np.mean(above[1:]))}


def capped(sigma: float, cap: int, seed: int) -> list[dict[str, Any]]:
    ours: list[tuple[float, float]] = []
    theirs: list[tuple[float, float]] = []
    for batch in range(BATCHES):
        lengths = documents(256, sigma, cap, seed + batch)
        costs, bins = weigh(lengths), bins_needed(lengths, cap)
        bound = lower_bound(costs, bins, tokens=lengths, cap=cap)
        made = partition(costs, bins, tokens=lengths, cap=cap)
        assert made.tokens is not None
        ours.append((made.tokens.max() / cap, made.loads.max() / bound))
        if find_spec("numberpartitioning"):
            from numberpartitioning import karmarkar_karp

            parts = karmarkar_karp(costs.tolist(), bins, return_indices=True).partition
            most = max(int(lengths[part].sum()) for part in parts)
            heaviest = max(int(costs[part].sum()) for part in parts)
            theirs.append((most / cap, heaviest / bound))
    rows = []
    for name, values in (("lpt", ours), ("numberpartitioning", theirs)):
        if values:
            fills, above = np.array(values).T
            rows.append(
                {
                    "cap": cap,
                    "sigma": sigma,
                    "of": name,
                    "batches_over_cap": int((fills > 1).sum()),
                    "most_over_cap": float(fills.max()),
                    "over_bound": float(above.mean()),
                }
            )
    return rows


def main() -> None:
    arguments = parser(
        __doc__ or "", "python -m benchmarks.planning.partition --repeats 3", repeats=5
    )
    options = arguments.parse_args()
    rows = []
    for count, bins in SIZES:
        for entry in contenders():
            if count * bins <= entry.most:
                progress(f"{count:,} documents, {bins} bins: {entry.name}")
                found = timed(entry, count, bins, options.repeats, options.seed)
                rows.append({"documents": count, "bins": bins, "of": entry.name, **found})
    caps = [row for sigma, cap in CAPS for row in capped(sigma, cap, options.seed)]
    progress("")
    if options.json:
        plain = [{**row, "ms": row["ms"].as_dict()} for row in rows]
        print_json({"uncapped": plain, "capped": caps, "batches": BATCHES})
        return
    print(
        text_table(
            ["documents", "bins", "by", "ms (10-90 %)", "over bound"],
            [
                [
                    f"{row['documents']:,}",
                    f"{row['bins']:,}",
                    row["of"],
                    row["ms"].text(2),
                    f"{row['over_bound']:.6f}",
                ]
                for row in rows
            ],
        )
    )
    print()
    print(
        text_table(
            ["cap", "sigma", "by", f"over cap, of {BATCHES}", "worst / cap", "over bound"],
            [
                [
                    f"{row['cap']:,}",
                    f"{row['sigma']}",
                    row["of"],
                    str(row["batches_over_cap"]),
                    f"{row['most_over_cap']:.3f}",
                    f"{row['over_bound']:.4f}",
                ]
                for row in caps
            ],
        )
    )


if __name__ == "__main__":
    main()
