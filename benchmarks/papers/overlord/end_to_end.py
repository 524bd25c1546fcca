"""Figure 12 of the OVERLORD paper: its five models, predicted from operations."""

from __future__ import annotations

import numpy as np

from benchmarks.papers.outcome import Outcome, Table
from benchmarks.service.corpora import (
    LLAMA_12B,
    MIXTRAL,
    TMOE_25B,
    VIT_1B,
    VIT_2B,
    captioned,
)
from benchmarks.service.runs import (
    BACKBONE,
    HYBRID,
    IN_ORDER,
    MICRO_BATCHES,
    TP,
    papers_cases,
    run,
)

ENCODERS = {"ViT-1B": VIT_1B, "ViT-2B": VIT_2B}
BACKBONES = {"Llama-12B": LLAMA_12B, "tMoE-25B": TMOE_25B, "Mixtral-8x7B": MIXTRAL}
CONTEXTS = {4096: 1.71, 8192: 2.63, 16_384: 3.09}
"""Tokens of a sequence, and the paper's mean gain with them."""
RANKS = 64
STEPS, SEEDS = 2, 3


def figure_12(seed: int) -> Outcome:
    rows, gains = [], {}
    for context, printed in CONTEXTS.items():
        for encoder, cost in ENCODERS.items():
            corpus = captioned(context, context, cost)
            for name, backbone in BACKBONES.items():
                cases, mesh = papers_cases(backbone), {"DP": RANKS, "TP": TP}
                tallies = run(corpus, cases, mesh, STEPS, range(seed, seed + SEEDS))
                base = tallies[IN_ORDER]
                only, both = (
                    tallies[case].speed_up(base, "whole").median for case in (BACKBONE, HYBRID)
                )
                waits = [t.over_time("whole").median for t in (base, tallies[HYBRID])]
                gains.setdefault(context, []).append(both)
                rows.append(
                    [f"{context:,}", encoder, name, f"{only:.2f}", f"{both:.2f}"]
                    + [f"{wait:.2f}" for wait in waits]
                )
        rows.append([f"{context:,}", "mean", "", "", f"{np.mean(gains[context]):.2f}", "", ""])
        rows[-1][1] = f"mean; the paper's {printed:.2f}"
    header = ["context", "encoder", "backbone", "backbone balanced", "both balanced"]
    header += ["time over even: vanilla", "both balanced"]
    every = [gain for each in gains.values() for gain in each]
    title = f"Predicted gain over vanilla, {RANKS} data-parallel ranks of {TP}, "
    title += f"{MICRO_BATCHES} micro-batches each"
    return Outcome(
        [Table(header, rows, title)],
        f"1.77 mean, 4.54 at most; by context {', '.join(map(str, CONTEXTS.values()))}",
        f"{np.mean(every):.2f}, {max(every):.2f}; "
        + ", ".join(f"{np.mean(each):.2f}" for each in gains.values()),
    )
