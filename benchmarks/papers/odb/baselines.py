"""Rows of the ODB paper's Table 1 by shape: Sorted, online and offline, and sequence packing."""

from __future__ import annotations

import numpy as np

from benchmarks.lib.epoch import Epoch, plan_offline
from benchmarks.papers.odb.paper import BUFFER, CELLS, RANKS, Cell
from benchmarks.papers.odb.sweeps import Shares, arrivals, odb, standard
from benchmarks.papers.outcome import Outcome, Table
from evenstep.arrays import Int64Array
from evenstep.plan import Lengths, PoolSort, SequencePacking, Sorted
from evenstep.tools.simulate import simulate

SORTED = {"UltraChat": "1.40", "LLaVA": "1.42", "ShareGPT4o": "1.03"}
"""Table 1, 8B: speedup of Sorted."""
CUTOFF = 8192
"""Tokens of a packed sequence of UltraChat: its cutoff_len, Table 10."""
PREPROCESSED = 1000
"""Samples that LLaMA-Factory packs together: its preprocessing_batch_size."""


def sorted_rows(seed: int) -> Outcome:
    rows = []
    for cell in CELLS[:3]:
        lengths, shares = arrivals(cell.distribution, cell.trained, seed)
        size, base = cell.grouped_batch_size, standard(cell.batch_size, shares)
        online = PoolSort(size, pool_size=BUFFER, shuffle="none")
        found = {
            "`Sorted`, offline": _offline(size, lengths, seed),
            '`PoolSort(shuffle="none")`, online': Epoch.of_result(
                simulate(online, shares, buffer_size=BUFFER, seed=seed)
            ),
        }
        for name, epoch in found.items():
            row = [cell.data, f"{size}", name, f"{epoch.samples_per_step:.1f}"]
            row += [f"{100 * epoch.padding:.2f}", f"{epoch.imbalance:.3f}", SORTED[cell.data]]
            rows.append([*row, f"{epoch.efficiency / base.efficiency:.2f}"])
    columns = ["data", "batch", "policy", "samples/update", "padding %", "imbalance"]
    columns += ["speedup: paper", "predicted"]
    means = ", ".join(row[-1] for row in rows if "online" in row[2])
    return Outcome([Table(columns, rows)], ", ".join(SORTED.values()), f"online {means}")


def _offline(size: int, lengths: Int64Array, seed: int) -> Epoch:
    policy = Sorted(size, lengths=Lengths(lengths))
    return Epoch.of_groups(plan_offline(policy, lengths, RANKS, seed), [lengths] * RANKS)


def packing(seed: int) -> Outcome:
    cell = next(cell for cell in CELLS if cell.data == "UltraChat")
    lengths, shares = arrivals(cell.distribution, cell.trained, seed)
    base = standard(cell.batch_size, shares)
    rows = []
    for name, bins in {
        "Hugging Face: all end to end, cut at the cutoff": wrapped(lengths),
        "LLaMA-Factory: greedy, 1,000 samples at a time": knapsack(lengths),
    }.items():
        rows.append(_packed_row(name, bins, lengths, base))
    result = simulate(SequencePacking(CUTOFF), shares, buffer_size=BUFFER, seed=seed)
    ours = Epoch.of_result(result)
    rows.append(_row("`SequencePacking(8192)`, windows of 1,024", ours, "0.0", base))
    rows.append(_odb_row(cell, shares, base, seed))
    columns = ["", "samples/update", "tokens/update", "empty %", "cut samples %", "imbalance"]
    columns += ["speedup: paper", "predicted"]
    for row, paper in zip(rows, ("1.81", "1.81", "", "1.77")):
        row.insert(-1, paper)
    return Outcome([Table(columns, rows)], "1.81", f"{rows[0][-1]} and {rows[1][-1]} predicted")


def wrapped(lengths: Int64Array) -> tuple[Int64Array, float]:
    """Tokens of each sequence, and the share of samples that are cut."""
    total = int(lengths.sum())
    ends = np.cumsum(lengths)
    cut = (ends - 1) // CUTOFF != (ends - lengths) // CUTOFF
    return np.full(total // CUTOFF, CUTOFF), float(cut.mean())


def knapsack(lengths: Int64Array) -> tuple[Int64Array, float]:
    """Each sequence takes the longest sample left that still fits, until none does."""
    bins = []
    for begin in range(0, len(lengths), PREPROCESSED):
        left = np.sort(lengths[begin : begin + PREPROCESSED]).tolist()
        while left:
            room = CUTOFF
            while (at := int(np.searchsorted(left, room, side="right"))) and left:
                room -= left.pop(at - 1)
            bins.append(CUTOFF - room)
    return np.array(bins), 0.0


def _packed_row(
    name: str, packed: tuple[Int64Array, float], lengths: Int64Array, base: Epoch
) -> list[str]:
    """One sequence a rank and step, in the order in which they were packed."""
    bins, cut = packed
    steps = len(bins) // RANKS
    dealt = bins[: steps * RANKS].reshape(steps, RANKS)
    imbalance = dealt.max(axis=1).sum() / dealt.mean(axis=1).sum()
    # A sequence is computed at its full width, as the paper's stack pads it to the cutoff.
    filled = float(bins.mean()) / CUTOFF
    samples, tokens = len(lengths) / steps, float(dealt.sum()) / steps
    row = [name, f"{samples:.1f}", f"{tokens:,.0f}", f"{100 * (1 - filled):.1f}"]
    return [*row, f"{100 * cut:.1f}", f"{imbalance:.3f}", f"{filled / base.efficiency:.2f}"]


def _row(name: str, epoch: Epoch, cut: str, base: Epoch) -> list[str]:
    empty = 100 * (1 - epoch.tokens_per_step / (RANKS * CUTOFF))
    row = [name, f"{epoch.samples_per_step:.1f}", f"{epoch.tokens_per_step:,.0f}", f"{empty:.1f}"]
    return [*row, cut, f"{epoch.imbalance:.3f}", f"{epoch.efficiency / base.efficiency:.2f}"]


def _odb_row(cell: Cell, shares: Shares, base: Epoch, seed: int) -> list[str]:
    epoch = Epoch.of_result(odb(shares, cell.max_tokens, BUFFER, seed))
    row = _row("ODB, budget 12,288", epoch, "0.0", base)
    row[3] = f"{100 * epoch.padding:.1f}"
    return row
