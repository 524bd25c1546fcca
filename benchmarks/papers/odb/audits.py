"""Appendix D and Table 6 of the ODB paper: groups, and a rank without samples."""

from __future__ import annotations

import math

import numpy as np

from benchmarks.papers.odb.paper import OdbRule
from benchmarks.papers.outcome import Outcome, Table
from evenstep.plan.groups import token_budget_groups
from evenstep.tools.simulate import sample_lengths
from evenstep.tools.simulate.run import run_epoch

EXAMPLE = {(100, 200): 400, (500,): 500, (800,): 800}
"""Appendix D: lengths of the samples of each group, and its padded tokens; the budget is 1000."""


def appendix_d(seed: int) -> Outcome:
    lengths = np.array(sorted(length for group in EXAMPLE for length in group))
    groups = token_budget_groups(lengths, 1000)
    ours = {
        tuple(sorted(lengths[groups.group(g)].tolist())): int(padded)
        for g, padded in enumerate(groups.shapes(lengths).padded)
    }
    paper, found = (
        [" + ".join(map(str, group)) + f": {each[group]}" for group in sorted(each)]
        for each in (EXAMPLE, ours)
    )
    table = Table(["samples: padded tokens, paper", "ours"], [list(r) for r in zip(paper, found)])
    return Outcome([table], "; ".join(paper), "; ".join(found))


BUDGET = 4096
ASSIGNED = (*range(47, 32, -1), 0)
STEPS = (35, 35, 33, 33, 33, 33, 31, 31, 31, 31, 29, 29, 29, 29, 27, 0)
EMITTED = (46, 46, 42, 42, 42, 42, 38, 38, 38, 38, 34, 34, 34, 34, 31, 0)


def table_6(seed: int) -> Outcome:
    drawn = sample_lengths("sharegpt4o", sum(ASSIGNED), seed)
    shares = np.split(drawn, np.cumsum(ASSIGNED)[:-1])
    run = run_epoch(OdbRule(BUDGET), shares, buffer_size=1024, seed=seed)
    rows = []
    for rank, own in enumerate(run.ranks):
        filled = [step for step in own.steps if not step.filler]
        emitted = sum(len(step.members) for step in filled)
        row = [ASSIGNED[rank], STEPS[rank], len(own.steps), EMITTED[rank], emitted]
        row += [len(own.steps) - len(filled), int(own.protocol.finished)]
        rows.append([f"{rank}", *map(str, row)])
    columns = ["rank", "assigned", "steps: paper", "ours", "emitted: paper", "ours", "fillers"]
    left = sum(ASSIGNED) - sum(int(row[5]) for row in rows)
    steps = {row[3] for row in rows}
    same = steps.pop() if len(steps) == 1 else math.nan
    return Outcome(
        [Table([*columns, "finished"], rows)],
        "0 to 35 steps, 21 samples left",
        f"{same} steps on all, {left} left",
    )
