"""Figure 15 on real ranks: one layer under per-sequence and per-document sharding.

Four processes with a Gloo group share every micro-batch; each computes its tokens of a layer,
forward and backward. What counts is the processor time of the rank that computes most, as the
others wait for it: time on the clock would measure what else this machine does. Windows and width
are a sixteenth of the 7B model's, so that attention is the same part of a layer.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F

from benchmarks.lib import ranks
from benchmarks.papers.outcome import Outcome, Table
from benchmarks.papers.wlb.packing_run import cut_at_windows
from evenstep.arrays import Float64Array, Int64Array
from evenstep.context_parallel import attention, prepare
from evenstep.plan.sharding.adaptive import shard
from evenstep.plan.sharding.sharding import Sharding
from evenstep.tools.simulate import sample_lengths

SCALE = 16
WIDTH, HEADS, FFN = 256, 4, 688
RANKS = 4
WINDOWS = 6
REPEATS = 2
METHODS = ("per-sequence", "per-document", "hybrid")
CONTEXTS = {"64K": 65_536, "128K": 131_072}
PAPER = {"64K": 1.01, "128K": 1.07}


def windows(context: int, seed: int) -> list[Int64Array]:
    """Lengths of the documents of some windows of original packing, on the small scale."""
    lengths = np.maximum(sample_lengths("pretrain-128k", 4000, seed) // SCALE, 1)
    pieces, number = cut_at_windows(lengths, context // SCALE)
    whole = np.split(pieces, np.flatnonzero(np.diff(number)) + 1)[:-1]
    picked = np.random.default_rng(seed).choice(len(whole), WINDOWS, replace=False)
    return [whole[k] for k in picked.tolist()]


def layer_seconds(plans: Sequence[Sharding]) -> list[float]:
    """On one rank: processor seconds of a layer under each plan, least of `REPEATS`."""
    torch.manual_seed(0)
    rank = torch.distributed.get_rank()
    sizes = ((3 * WIDTH, WIDTH), (WIDTH, WIDTH), (2 * FFN, WIDTH), (WIDTH, FFN))
    qkv, out, up, down = ((torch.randn(size) / 16).requires_grad_() for size in sizes)
    found = []
    for plan in plans:
        prepared = prepare(plan, device="cpu", backend="sdpa")
        best = float("inf")
        for _ in range(REPEATS):
            x = torch.randn(len(plan.indices(rank)), WIDTH, requires_grad=True)
            begin = time.thread_time()
            q, k, v = F.linear(x, qkv).view(len(x), 3, HEADS, -1).unbind(1)
            y = x + F.linear(attention(q, k, v, prepared).flatten(1), out)
            gate, value = F.linear(y, up).chunk(2, dim=1)
            (y + F.linear(F.silu(gate) * value, down)).sum().backward()
            best = min(best, time.thread_time() - begin)
        found.append(best)
    return found


def measured(context: int, seed: int) -> dict[str, Float64Array]:
    """By method, [windows] seconds of the slowest rank; and of the method that tiles choose."""
    micro_batches = windows(context, seed)
    plans = [
        [shard(documents, RANKS, methods=(method,)) for method in METHODS]
        for documents in micro_batches
    ]
    flat = [plan for each in plans for plan in each]
    slowest = np.max(ranks.run(layer_seconds, RANKS, flat), axis=0).reshape(-1, len(METHODS))
    found = dict(zip(METHODS, slowest.T))
    chosen = [shard(d, RANKS, methods=METHODS[:2]).method for d in micro_batches]
    found["adaptive"] = np.array(
        [slowest[k, METHODS.index(method)] for k, method in enumerate(chosen)]
    )
    found["optimal"] = slowest[:, :2].min(axis=1)
    return found


def figure_15(seed: int) -> Outcome:
    rows = []
    found = {name: measured(context, seed) for name, context in CONTEXTS.items()}
    labels = {
        "per-document": "per-document",
        "adaptive": "adaptive of the two, by tiles",
        "optimal": "optimal of the two",
        "hybrid": "evenstep: hybrid",
    }
    for method, label in labels.items():
        gains = [each["per-sequence"].sum() / each[method].sum() for each in found.values()]
        printed = ", ".join(f"{v:.2f}" for v in PAPER.values()) if method == "per-document" else ""
        rows.append([label, *(f"{gain:.2f}" for gain in gains), printed])
    first = ", ".join(rows[0][1 : 1 + len(found)])
    header = ["over per-sequence sharding", *found, "paper"]
    return Outcome(
        [Table(header, rows, f"{WINDOWS} micro-batches of each window, CP={RANKS}")],
        "per-document 1.01 at 64K, 1.07 at 128K",
        f"{first}, on a CPU",
    )
