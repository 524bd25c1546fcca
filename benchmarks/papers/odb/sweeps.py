"""Tables 2 and 17, Figure 2, equation 5 of the ODB paper: the shape of batches by one knob."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.lib.epoch import Epoch, in_order
from benchmarks.papers.odb.paper import BUFFER, CELLS, RANKS, OdbRule
from benchmarks.papers.outcome import Outcome, Table
from evenstep.arrays import Int64Array
from evenstep.plan import FixedBatch
from evenstep.tools.simulate import SimulationResult, deal, sample_lengths, simulate

Shares = list[Int64Array]

SPEEDUPS = {
    2048: ("1.47", "1.41", "2.31"),
    4096: ("1.60", "1.58", "2.42"),
    8192: ("1.64", "1.68", "2.52"),
    12_288: ("1.77", "1.71", "2.58"),
    14_336: ("1.75", "1.70", "2.60"),
    16_384: ("1.72", "1.73", "2.47"),
    32_768: ("failed", "failed", "failed"),
}
"""Table 2: by budget, of UltraChat, LLaVA and ShareGPT4o."""
BUFFERS = {
    ("2B", 4096): ((3.0, 1.28), (1.6, 1.84), (1.0, 2.07), (0.5, 2.37), (0.4, 2.53), (0.3, 2.58)),
    ("8B", 8192): ((7.8, 1.25), (4.5, 1.83), (2.8, 2.19), (0.9, 2.29), (0.6, 2.78), (0.5, 2.61)),
}
"""Table 17: by model size and budget, percent of padding and speedup of each of `SIZES`."""
SIZES = (10, 50, 100, 500, 1024, 2000)
FULL = {"8B": ("1.77", "1.73", "2.46"), "2B": ("1.76", "1.72", "2.47")}
"""Table 1: speedup of UltraChat, LLaVA and ShareGPT4o."""
MIX = 65_536
"""Samples of MM-Mix that are simulated; the paper has 545,178."""


def arrivals(name: str, count: int, seed: int) -> tuple[Int64Array, Shares]:
    lengths = sample_lengths(name, count, seed)
    return lengths, [lengths[share] for share in deal(count, RANKS, seed)]


def odb(shares: Shares, budget: int, buffer: int, seed: int) -> SimulationResult:
    return simulate(OdbRule(budget), shares, buffer_size=buffer, seed=seed)


def standard(batch_size: int, shares: Shares) -> Epoch:
    return Epoch.of_groups(in_order(FixedBatch(batch_size), shares), shares)


def table_2(seed: int) -> Outcome:
    rows = []
    found = [(cell, *arrivals(cell.distribution, cell.trained, seed)) for cell in CELLS[:3]]
    base = [standard(cell.batch_size, shares).efficiency for cell, _, shares in found]
    for budget, printed in SPEEDUPS.items():
        row = [f"{budget:,}"]
        for (_, _, shares), paper, fixed in zip(found, printed, base):
            result = odb(shares, budget, BUFFER, seed)
            row += [f"{result.samples_per_step:.1f}", f"{100 * result.padding:.1f}"]
            row += [f"{result.imbalance:.3f}", paper, f"{result.efficiency / fixed:.2f}"]
        rows.append(row)
    columns = ["budget"]
    for cell, _, _ in found:
        columns += [f"{cell.data}: samples/update", "padding %", "imbalance", "speedup: paper"]
        columns += ["predicted"]
    paper, ours = ("; ".join(_by_data(rows, at)) for at in (4, 5))
    return Outcome([Table(columns, rows)], paper, ours)


def _by_data(rows: list[list[str]], at: int) -> Iterator[str]:
    """Figures of the smallest budget and of 12,288, for the three data sets."""
    for row in (rows[0], rows[3]):
        yield f"{row[0]}: {', '.join(row[at::5])}"


def table_17(seed: int) -> Outcome:
    rows = []
    cell = next(cell for cell in CELLS if cell.data == "ShareGPT4o")
    _, shares = arrivals(cell.distribution, cell.trained, seed)
    base = standard(cell.batch_size, shares).efficiency
    for (model, budget), printed in BUFFERS.items():
        for buffer, (padding, speedup) in zip(SIZES, printed):
            result = odb(shares, budget, buffer, seed)
            row = [f"{model}, budget {budget:,}", f"{buffer:,}", f"{padding}"]
            row += [f"{100 * result.padding:.1f}", f"{speedup}", f"{result.efficiency / base:.2f}"]
            rows.append([*row, f"{result.samples_per_step:.1f}", f"{result.imbalance:.3f}"])
    columns = ["", "buffer", "padding %: paper", "ours", "speedup: paper", "predicted"]
    paper, ours = (
        f"padding {', '.join(_ends(rows, at))} %; speedup {', '.join(_ends(rows, at + 2))}"
        for at in (2, 3)
    )
    return Outcome([Table([*columns, "samples/update", "imbalance"], rows)], paper, ours)


def _ends(rows: list[list[str]], at: int) -> Iterator[str]:
    """Figures of the smallest buffer and the largest, for the two budgets."""
    for first in (0, len(SIZES)):
        yield f"{rows[first][at]} to {rows[first + len(SIZES) - 1][at]}"


def figure_2a(seed: int) -> Outcome:
    cell = next(cell for cell in CELLS if cell.data == "ShareGPT4o")
    _, shares = arrivals(cell.distribution, cell.trained, seed)
    rows = []
    alone = standard(1, shares)
    for size in (1, 2, 4, 8):
        epoch = standard(size, shares)
        paper = {1: ("0", "1.00"), 2: ("25 to 28", "about 0.60")}.get(size, ("", ""))
        rows.append(_point(f"fixed batch of {size}", paper, epoch, alone))
    for model, budget, paper in (("2B", 4096, ("0.36", "2.49")), ("8B", 12_288, ("1.27", "2.58"))):
        epoch = Epoch.of_result(odb(shares, budget, BUFFER, seed))
        rows.append(_point(f"ODB, {model}, budget {budget:,}", paper, epoch, alone))
    columns = ["", "padding %: paper", "ours", "throughput: paper", "predicted", "imbalance"]
    printed, ours = (
        f"padding {rows[1][at]} %, throughput {rows[1][at + 2]}; ODB {rows[5][at]} %, "
        f"{rows[5][at + 2]}"
        for at in (1, 2)
    )
    return Outcome([Table(columns, rows)], printed, ours)


def _point(name: str, paper: tuple[str, str], epoch: Epoch, base: Epoch) -> list[str]:
    predicted = f"{epoch.efficiency / base.efficiency:.2f}"
    row = [name, paper[0], f"{100 * epoch.padding:.2f}", paper[1], predicted]
    return [*row, f"{epoch.imbalance:.3f}"]


def figure_2b(seed: int) -> Outcome:
    """With the estimate of equation 5."""
    rows = []
    for model, printed in FULL.items():
        for cell, paper in zip((c for c in CELLS if c.model == model), printed):
            lengths, shares = arrivals(cell.distribution, cell.trained, seed)
            row = _speedup(lengths, shares, cell.batch_size, cell.max_tokens, seed)
            rows.append([f"{cell.data}, {model}", *row[:2], paper, *row[2:]])
    for model, budget, paper in (("2B", 12_288, "4.43"), ("8B", 8192, "2.92")):
        lengths, shares = arrivals("mm-mix", MIX, seed)
        row = _speedup(lengths, shares, 1, budget, seed)
        rows.append([f"MM-Mix, {model}", *row[:2], paper, *row[2:]])
    columns = ["", "CV", "f_s", "speedup: paper", "predicted", "1 + 1.41 CV + 6.23 f_s"]
    predicted = [float(row[4]) for row in rows[:-2]]
    share, mixed = rows[5], rows[6]  # of 2B, to which the paper fits equation 5
    return Outcome(
        [Table(columns, rows)],
        "1.72 to 2.47, MM-Mix 4.43; f_s 0.01 and 0.37",
        f"{min(predicted):.2f} to {max(predicted):.2f}, MM-Mix {mixed[4]}; f_s {share[2]} and "
        f"{mixed[2]}, so equation 5 says {share[5]} and {mixed[5]}",
    )


def _speedup(
    lengths: Int64Array, shares: Shares, batch_size: int, budget: int, seed: int
) -> list[str]:
    cv = float(lengths.std() / lengths.mean())
    short = float((lengths < budget / 4).mean())
    fixed = standard(batch_size, shares)
    gain = odb(shares, budget, BUFFER, seed).efficiency / fixed.efficiency
    return [f"{cv:.2f}", f"{short:.2f}", f"{gain:.2f}", f"{1 + 1.41 * cv + 6.23 * short:.2f}"]
