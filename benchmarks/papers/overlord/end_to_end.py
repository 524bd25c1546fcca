"""Table 1 and Figure 12 of the OVERLORD paper: all five models, predicted from operations."""

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
from evenstep.cost import GroupShapes, TransformerCost

ENCODERS = {"ViT-1B": VIT_1B, "ViT-2B": VIT_2B}
BACKBONES = {"Llama-12B": LLAMA_12B, "tMoE-25B": TMOE_25B, "Mixtral-8x7B": MIXTRAL}
CONTEXTS = {4096: 1.71, 8192: 2.63, 16_384: 3.09}
"""Tokens of a sequence, and the paper's mean gain with them."""
RANKS = 64
STEPS, SEEDS = 2, 3


def parameters(cost: TransformerCost) -> float:
    """All parameters, in thousands of millions; embeddings counted once."""
    kv = (cost.kv_heads or cost.heads) / cost.heads
    networks = cost.experts or 1
    feed_forward = networks * (3 if cost.gated else 2) * cost.hidden_size * cost.ffn_size
    layer = 2 * cost.hidden_size**2 * (1 + kv) + feed_forward + cost.hidden_size * cost.experts
    return (cost.layers * layer + cost.hidden_size * cost.vocab_size) / 1e9


def table_1(seed: int) -> Outcome:
    """The models as `TransformerCost` has them; `seed` changes nothing."""
    rows = []
    shares = []
    for name, cost in {**ENCODERS, **BACKBONES}.items():
        sequence = GroupShapes.measure([16_384], [0, 1])
        whole = float(cost(sequence, packed=True)[0])
        share = 1 - cost.per_token * 16_384 / whole
        shares.append(share)
        rows.append(
            [
                name,
                f"{cost.layers}",
                f"{cost.heads}",
                f"{cost.hidden_size:,}",
                f"{cost.ffn_size:,}",
                f"{cost.experts}, {cost.top_k} at a time" if cost.experts else "",
                f"{parameters(cost):.1f}",
                f"{cost.per_token / 1e9:.1f}",
                f"{share:.0%}",
            ]
        )
    header = ["model", "layers", "heads", "width", "FFN width", "experts", "parameters, 1e9"]
    header += ["1e9 operations of a token", "attention's share at 16,384 tokens"]
    return Outcome(
        [Table(header, rows)],
        "1 B, 2 B, 12 B, 25 B, 8x7 B",
        ", ".join(f"{row[6]} B" for row in rows),
    )


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
        "1.77 mean, 4.54 at most",
        f"{np.mean(every):.2f} mean, {max(every):.2f} at most",
    )
