"""Table 18 of the ODB paper: what each way of scaling losses does to the gradient.

The paper has losses and throughput of short runs, which say little: here it is the gradient itself,
beside that of one batch of all samples of all ranks. The model is a table of next-token scores, so
a sample's gradient is cheap and exact; text of long samples differs from that of short ones, as
dialogues do from captions.
"""

from __future__ import annotations

import numpy as np

from benchmarks.papers.odb.paper import BUFFER, RANKS, OdbRule
from benchmarks.papers.odb.sweeps import arrivals
from benchmarks.papers.outcome import Outcome, Table
from evenstep.arrays import Float64Array
from evenstep.batch.loss_scale import LOSS_SCALING, loss_scale
from evenstep.tools.simulate.run import run_epoch

SAMPLES, BUDGET, WORDS, STEPS = 6000, 4096, 32, 120
MODES = (*LOSS_SCALING, "approximate")
PAPER = {
    "sample": "1.342 / 1.317, 16.70",
    "approximate": "1.292 / 1.317, 16.70",
    "token": "1.341 / 1.317, 16.73",
}


def gradients(lengths: Float64Array, seed: int) -> Float64Array:
    """[samples, words] gradient of each sample's mean loss, at uniform scores: its share of each
    word, less the uniform one."""
    rng = np.random.default_rng(seed)
    short, long = (rng.dirichlet(np.full(WORDS, 0.5)) for _ in range(2))
    share = np.clip(np.log(lengths / 500) / np.log(20), 0, 1)[:, None]
    words = (1 - share) * short + share * long
    counts = np.stack([rng.multinomial(int(n), p) for n, p in zip(lengths, words)])
    result: Float64Array = 1 / WORDS - counts / lengths[:, None]
    return result


def table_18(seed: int) -> Outcome:
    _, shares = arrivals("sharegpt4o", SAMPLES, seed)
    run = run_epoch(OdbRule(BUDGET), shares, buffer_size=BUFFER, seed=seed)
    own_gradients = [gradients(own.astype(np.float64), seed + 1) for own in shares]
    errors: dict[str, list[float]] = {mode: [] for mode in MODES}
    for index in range(min(STEPS, len(run.ranks[0].steps))):
        steps = [rank.steps[index] for rank in run.ranks]
        tokens = [own[step.members] for own, step in zip(shares, steps)]
        summed = [
            (g[step.members] * own[:, None]).sum(axis=0)
            for g, step, own in zip(own_gradients, steps, tokens)
        ]
        true = np.sum(summed, axis=0) / sum(int(own.sum()) for own in tokens)
        means = [total / max(int(own.sum()), 1) for total, own in zip(summed, tokens)]
        totals = steps[0].totals
        # The paper's estimate: samples of the step, times the mean of the rank's window.
        estimated = totals.samples * [step.round.start.columns[1].mean() for step in steps]
        for mode in MODES:
            if mode == "approximate":
                scales = RANKS * estimated / estimated.sum()
            else:
                scales = [loss_scale(totals, rank, mode) for rank in range(RANKS)]
            mixed = sum(scale * mean for scale, mean in zip(scales, means)) / RANKS
            errors[mode].append(float(np.linalg.norm(mixed - true) / np.linalg.norm(true)))
    rows = [
        [f'`loss_scaling="{mode}"`', PAPER.get(mode, ""), *_spread(errors[mode])] for mode in MODES
    ]
    columns = ["", "paper, 2B: loss / unscaled, samples/s", "gradient error: median", "p90", "most"]
    return Outcome([Table(columns, rows)], "token scaling exact", f"error {rows[0][-1]}")


def _spread(values: list[float]) -> list[str]:
    return [
        f"{v:.1e}" if v > 1e-12 else "0" for v in (*np.quantile(values, [0.5, 0.9]), max(values))
    ]
