"""Tables 4, 5 and 21 of the ODB paper: what an epoch leaves when it stops, and at what price."""

from __future__ import annotations

from benchmarks.papers.odb.paper import (
    BOUNDS,
    BUFFER,
    CELLS,
    COVERAGE,
    RANKS,
    Bound,
    Coverage,
    OdbRule,
)
from benchmarks.papers.outcome import Outcome, Table
from evenstep.tools.simulate import deal, sample_lengths, simulate

PARTS = (1, 2, 20)
"""Rank 0 has one n-th of its share."""


def endings(bound: Bound, seed: int) -> tuple[list[str], int]:
    """A row of Table 4: epochs of `TokenBudget` that end in each of the two ways, with equal shares
    and with shares of which one is smaller; and the identities missing under "pad"."""
    lengths = sample_lengths(bound.distribution, bound.samples, seed)
    equal = deal(len(lengths), RANKS, seed)
    row = [bound.name, f"{bound.samples:,}", f"{bound.depth:,}", f"{bound.percent:.1f}"]
    missing = fillers = 0
    for part in PARTS:
        shares = [equal[0][: len(equal[0]) // part], *equal[1:]]
        stop, pad = (
            simulate(
                OdbRule(bound.max_tokens),
                [lengths[share] for share in shares],
                buffer_size=bound.buffer,
                exhausted=ending,
                seed=seed,
                identities=shares,
            )
            for ending in ("stop", "pad")
        )
        row.append(f"{100 * stop.undelivered / sum(map(len, shares)):.1f}")
        missing += pad.missing
        fillers = pad.filler_steps
    return [*row, f"{missing}", f"{fillers:,}"], missing


ENDINGS = ["configuration", "N", "D", "W D / N %: paper", "stop: left %", "one has 1/2"]
ENDINGS += ["one has 1/20", "pad: missing", "filler steps, 1/20"]


def coverage(row: Coverage, seed: int) -> list[str]:
    lengths = sample_lengths(row.distribution, row.samples, seed)
    shares = deal(len(lengths), RANKS, seed)
    result = simulate(
        OdbRule(row.max_tokens),
        [lengths[share] for share in shares],
        buffer_size=row.buffer,
        exhausted="stop",
        seed=seed,
        identities=shares,
    )
    return [
        row.name,
        f"{row.samples:,}",
        f"{row.per_rank:,}",
        f"{len(shares[0]):,}",
        f"{row.emitted:,}",
        f"{result.emitted:,}",
        f"{row.repeated}",
        f"{result.sampler_padding}",
        "0",
        f"{result.missing}",
        f"{result.duplicates}",
    ]


COVERED = ["configuration", "N", "emitted per rank: paper", "ours", "emitted: paper", "ours"]
COVERED += ["repeated by the sampler: paper", "ours", "missing: paper", "ours", "duplicates: ours"]


def table_4(seed: int) -> Outcome:
    rows, missing = zip(*(endings(bound, seed) for bound in BOUNDS))
    return Outcome(
        [Table(ENDINGS, rows)],
        "at most 1.5 to 60.2 %",
        f"0.0 %, equal shares; {sum(missing)} missing",
    )


def table_5(seed: int) -> Outcome:
    rows = [coverage(row, seed) for row in COVERAGE]
    return Outcome([Table(COVERED, rows)], "0 missing", f"{sum(int(r[9]) for r in rows)} missing")


JOIN = {
    "LLaVA, 8B": "0.9982",
    "ShareGPT4o, 8B": "0.9993",
    "UltraChat, 8B": "1.0001",
    "LLaVA, 2B": "0.9963",
    "ShareGPT4o, 2B": "0.9995",
    "UltraChat, 2B": "1.0002",
}
"""Table 21, full fine-tuning on one node: throughput of join over that of non-join."""


def table_21(seed: int) -> Outcome:
    rows = []
    for cell in CELLS:
        name = f"{cell.data}, {cell.model}"
        drawn = sample_lengths(cell.distribution, cell.trained, seed)
        shares = deal(len(drawn), RANKS, seed)
        pad, stop = (
            simulate(
                OdbRule(cell.max_tokens),
                [drawn[share] for share in shares],
                buffer_size=BUFFER,
                exhausted=ending,
                seed=seed,
                identities=shares,
            )
            for ending in ("pad", "stop")
        )
        ratio = (pad.emitted / pad.costs.max(axis=1).sum()) / (
            stop.emitted / stop.costs.max(axis=1).sum()
        )
        row = [name, JOIN[name], f"{ratio:.4f}", f"{pad.steps:,}", f"{stop.steps:,}"]
        rows.append([*row, f"{pad.emitted:,}", f"{stop.emitted:,}", f"{pad.filler_steps}"])
    columns = ["", "join / non-join: paper", "predicted", "steps: pad", "stop", "samples: pad"]
    worst = max((row[2] for row in rows), key=lambda ratio: abs(float(ratio) - 1))
    return Outcome(
        [Table([*columns, "stop", "fillers"], rows)], "0.9963 to 1.0002", f"{worst} at most"
    )
