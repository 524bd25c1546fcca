"""Rows of the ODB paper's Table 1 by shape: Sorted, and sequence packing."""

from __future__ import annotations

import numpy as np

from benchmarks.papers.odb.paper import BUFFER, CELLS, RANKS
from benchmarks.papers.odb.sweeps import arrivals, standard
from benchmarks.papers.outcome import Outcome, Table
from benchmarks.papers.pool_sort.tables import Unshuffled
from evenstep.arrays import Int64Array
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
        _, shares = arrivals(cell.distribution, cell.trained, seed)
        size, base = cell.grouped_batch_size, standard(cell.batch_size, shares)
        policy = Unshuffled(size, pool_size=BUFFER)
        found = simulate(policy, shares, buffer_size=BUFFER, seed=seed)
        row = [cell.data, f"{size}", f"{found.samples_per_step:.1f}", f"{100 * found.padding:.2f}"]
        row += [f"{found.imbalance:.3f}", SORTED[cell.data]]
        rows.append([*row, f"{found.efficiency / base.efficiency:.2f}"])
    columns = ["data", "batch", "samples/update", "padding %", "imbalance", "speedup: paper"]
    title = f"`PoolSort(pool_size={BUFFER})`, not shuffled"
    predicted = ", ".join(row[-1] for row in rows)
    return Outcome(
        [Table([*columns, "predicted"], rows, title)],
        ", ".join(SORTED.values()),
        predicted,
    )


def packing(seed: int) -> Outcome:
    cell = next(cell for cell in CELLS if cell.data == "UltraChat")
    lengths, shares = arrivals(cell.distribution, cell.trained, seed)
    base = standard(cell.batch_size, shares)
    found = {
        "Hugging Face: all end to end, cut at the cutoff": wrapped(lengths),
        "LLaMA-Factory: greedy, 1,000 samples at a time": knapsack(lengths),
    }
    rows = []
    for name, bins in found.items():
        # A sequence is computed at its full width, as the paper's stack pads it to the cutoff.
        filled = float(bins.mean()) / CUTOFF
        samples = len(lengths) * RANKS / len(bins)
        row = [name, f"{samples:.1f}", f"{100 * (1 - filled):.1f}", "1.81"]
        rows.append([*row, f"{filled / base.efficiency:.2f}"])
    columns = ["", "samples/update", "empty %", "speedup: paper", "predicted"]
    return Outcome([Table(columns, rows)], "1.81", f"{rows[0][-1]} and {rows[1][-1]} predicted")


def wrapped(lengths: Int64Array) -> Int64Array:
    """Tokens of each sequence: all are full."""
    return np.full(int(lengths.sum()) // CUTOFF, CUTOFF)


def knapsack(lengths: Int64Array) -> Int64Array:
    """Tokens of each sequence, which takes the longest sample left that still fits, until none
    does."""
    bins = []
    for begin in range(0, len(lengths), PREPROCESSED):
        left = np.sort(lengths[begin : begin + PREPROCESSED]).tolist()
        while left:
            room = CUTOFF
            while (at := int(np.searchsorted(left, room, side="right"))) and left:
                room -= left.pop(at - 1)
            bins.append(CUTOFF - room)
    return np.array(bins)
