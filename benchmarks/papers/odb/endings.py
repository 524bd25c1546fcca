"""Tables 4 and 5 of the ODB paper: what an epoch leaves when it stops."""

from __future__ import annotations

from typing import Any

from benchmarks.papers.odb.paper import (
    BOUNDS,
    COVERAGE,
    RANKS,
    Bound,
    Coverage,
    OdbRule,
)
from benchmarks.papers.outcome import Outcome, Table
from evenstep.tools.simulate import SimulationResult, deal, sample_lengths
from evenstep.tools.simulate.result import measure
from evenstep.tools.simulate.run import run_epoch

PARTS = (1, 2, 20)
"""Rank 0 has one n-th of its share."""


def _ended(policy: OdbRule, *shares: Any, **options: Any) -> SimulationResult:
    return measure(policy, policy.cost, run_epoch(policy, *shares, **options))


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
            _ended(
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
    result = _ended(
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
    most = [max(float(row[at]) for row in rows) for at in range(4, 4 + len(PARTS))]
    return Outcome(
        [Table(ENDINGS, rows)],
        "at most 1.5 to 60.2 %",
        f"at most {most[0]} %, {max(most)} % of unequal shares; {sum(missing)} missing",
    )


def table_5(seed: int) -> Outcome:
    rows = [coverage(row, seed) for row in COVERAGE]
    paper, ours = (" and ".join(row[at] for row in rows) for at in (4, 5))
    missing = sum(int(row[9]) for row in rows)
    return Outcome(
        [Table(COVERED, rows)], f"{paper} emitted, 0 missing", f"{ours}, {missing} missing"
    )
