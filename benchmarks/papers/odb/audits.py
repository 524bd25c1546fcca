"""Corollary 1, Tables 6 and 10 of the ODB paper: quotas, a rank without samples, and lengths."""

from __future__ import annotations

import math

import numpy as np

from benchmarks.papers.odb.paper import RANKS, OdbRule
from benchmarks.papers.outcome import Outcome, Table
from evenstep.plan import Even, Policy
from evenstep.tools.simulate import deal, sample_lengths
from evenstep.tools.simulate.run import run_epoch

SHORT, LONG = (64, 512), (1800, 2048)
SYNTHETIC = {
    "uniform-narrow": ((1.0, SHORT),),
    "uniform-wide": ((1.0, (64, 2048)),),
    "longtail": ((0.9, SHORT), (0.1, LONG)),
    "bimodal": ((0.5, SHORT), (0.5, LONG)),
    "all-long": ((1.0, LONG),),
    "all-short": ((1.0, (32, 64)),),
}
"""Of Appendix I, which prints shares, and no bounds for those of two parts."""
SAMPLES, BUDGET, BUFFER = 1000, 4096, 64

ASSIGNED = (*range(47, 32, -1), 0)
STEPS = (35, 35, 33, 33, 33, 33, 31, 31, 31, 31, 29, 29, 29, 29, 27, 0)
EMITTED = (46, 46, 42, 42, 42, 42, 38, 38, 38, 38, 34, 34, 34, 34, 31, 0)


def chained(policy: Policy, name: str, exhausted: str, seed: int) -> list[np.ndarray]:
    """Identities of each step of all ranks, of epoch after epoch, until the quota is met: what
    `DataLoader.epochs` does."""
    rng = np.random.default_rng(seed)
    parts = [
        rng.integers(*bounds, round(share * SAMPLES), endpoint=True)
        for share, bounds in SYNTHETIC[name]
    ]
    lengths = rng.permutation(np.concatenate(parts))
    steps: list[np.ndarray] = []
    received = epoch = 0
    while received < SAMPLES:
        shares = deal(SAMPLES, RANKS, seed + epoch)
        run = run_epoch(
            policy,
            [lengths[share] for share in shares],
            buffer_size=BUFFER,
            exhausted=exhausted,
            seed=seed + epoch,
            identities=shares,
        )
        for index in range(len(run.ranks[0].steps)):
            steps.append(run.step(index))
            received += len(steps[-1])
            if received >= SAMPLES:
                break
        epoch += 1
    return steps


def corollary_1(seed: int) -> Outcome:
    rows, worst = [], 0.0
    for name in SYNTHETIC:
        for policy in (OdbRule(BUDGET), Even(BUDGET)):
            for exhausted in ("pad", "stop"):
                steps = chained(policy, name, exhausted, seed)
                emitted = np.concatenate(steps)
                quota = max(0.0, 1 - len(emitted) / SAMPLES)
                identity = 1 - len(np.unique(emitted)) / SAMPLES
                worst = max(worst, quota, identity)
                row = [name, type(policy).__name__, exhausted, f"{len(steps)}", f"{len(emitted)}"]
                row += [f"{len(emitted) / SAMPLES:.4f}", f"{quota:.4f}", f"{identity:.4f}"]
                rows.append(row)
    columns = ["lengths", "policy", "exhausted", "steps", "samples", "terminal epoch"]
    columns += ["quota error", "identity error"]
    return Outcome([Table(columns, rows)], "quota error 0", f"both errors {worst:g}")


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


LENGTHS = {
    "ultrachat": (207_865, 1196, 1104, 2239, 3065, 4471, 0.48),
    "llava": (157_712, 508, 463, 814, 914, 1260, 0.29),
    "sharegpt4o": (57_284, 1511, 977, 4584, 8937, 12_110, 1.00),
}
"""Table 10, and section 3.1: samples, mean, median, 95th and 99th percentile, longest, CV."""


def table_10(seed: int) -> Outcome:
    rows, worst = [], 0.0
    for name, (count, *printed) in LENGTHS.items():
        drawn = sample_lengths(name, count, seed)
        mean = float(drawn.mean())
        ours = [mean, *np.quantile(drawn, [0.5, 0.95, 0.99]), drawn.max(), drawn.std() / mean]
        worst = max(worst, *(abs(o / p - 1) for o, p in zip(ours, printed)))
        row = [name, f"{count:,}"]
        for paper, own in zip(printed, ours):
            row += [f"{v:.2f}" if paper < 2 else f"{v:,.0f}" for v in (paper, own)]
        rows.append(row)
    columns = ["lengths", "samples"]
    for what in ("mean", "median", "P95", "P99", "longest", "CV"):
        columns += [f"{what}: paper", "ours"]
    return Outcome([Table(columns, rows)], "means 1,196, 508, 1,511", f"within {worst:.1%}")
