"""What the demo found: figures of both runs, and a table with a verdict in words.

The verdict states only what was measured, and what limits it: other programs on the machine make
times wrong, and losses after short epochs of a few seeds differ by chance.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from evenstep.errors import InvariantError
from evenstep.tools.report.picture import StepPanel
from evenstep.tools.report.table import text_table
from evenstep_demos.text.budget import Choice
from evenstep_demos.text.train import REPEATS, RUNS, BothTrained, StepRecords

_COLUMNS = 88
_PROCESSOR_SHARE = 0.9  # below it, the verdict warns of other programs
_T_95 = 4.303  # Student's t at 97.5 % with two degrees of freedom: those of three repeats
assert REPEATS == 3

_ROWS = (
    ("real tokens per second", "tokens_per_second", ",.0f"),
    ("seconds, all repeats", "seconds", ".1f"),
    ("processor seconds", "processor_seconds", ".1f"),
    ("padding", "padding", ".1%"),
    ("imbalance of ranks", "imbalance", ".3f"),
    ("wait for data", "wait", ".1%"),
    ("steps, all repeats", "steps", ",d"),
    ("samples per step", "samples_per_step", ".2f"),
    ("most padded tokens in a batch", "most_padded_tokens", ",d"),
    ("held-out loss", "held_out_loss", ".3f"),
)

Figures = dict[str, Any]


def figures(repeats: Sequence[Sequence[StepRecords]], held_out_losses: Sequence[float]) -> Figures:
    """Figures of the repeats of a run, one after the other.

    Args:
        repeats: [repeats][ranks]
        held_out_losses: [repeats]

    Returns:
        Counts of tokens and samples are over all ranks, times are seconds, fractions are not
        percent:

        - ``seconds``: of the slowest rank, from asking for the first batch to the last step.
        - ``padding``: 1 - real tokens / padded tokens.
        - ``imbalance``: sum over steps of the slowest rank's processor seconds, over the sum of the
          mean. Not wall seconds: other programs take the processor from one rank or another.
        - ``wait``: fraction of its time that a rank waits for its loader, mean over ranks; with the
          first batch, for which the loader's processes have to start.
        - ``processor_share``: fraction of its compute seconds in which a rank had a processor. Well
          below 1, other programs were running, and seconds mean little.
        - ``processor_seconds``: of the slowest rank, summed over steps.
        - ``most_padded_tokens``: of the largest group on a rank, which decides the memory needed.
        - ``compute_seconds``: [steps, ranks] processor seconds of forward and backward passes.

    Raises:
        InvariantError: the ranks made different numbers of steps.
    """
    for ranks in repeats:
        if len({len(record.compute) for record in ranks}) > 1:
            raise InvariantError(f"the ranks made {[len(r.compute) for r in ranks]} steps")
    padded, compute, cpu = (
        np.concatenate([np.array([getattr(r, name) for r in ranks]).T for ranks in repeats])
        for name in ("padded_tokens", "compute", "compute_cpu")
    )
    records = [record for ranks in repeats for record in ranks]
    tokens = sum(sum(record.tokens) for record in records)
    samples = sum(sum(record.samples) for record in records)
    # A rank that is late in one repeat may be early in the next.
    by_rank = list(zip(*repeats))
    totals = [sum(record.total for record in rank) for rank in by_rank]
    waits = [sum(sum(record.wait) for record in rank) for rank in by_rank]
    return {
        "steps": len(padded),
        "samples": samples,
        "tokens": tokens,
        "seconds": max(totals),
        "tokens_per_second": tokens / max(totals),
        "padding": float(1 - tokens / padded.sum()),
        "imbalance": float(cpu.max(axis=1).sum() / cpu.mean(axis=1).sum()),
        "samples_per_step": samples / len(padded),
        "wait": float(np.mean(np.divide(waits, totals))),
        "processor_share": float(cpu.sum() / compute.sum()),
        "processor_seconds": float(cpu.max(axis=1).sum()),
        "most_padded_tokens": int(padded.max()),
        "held_out_loss": float(np.mean(held_out_losses)),
        "compute_seconds": np.round(cpu, 5).tolist(),
    }


def figures_of_both(trained: BothTrained) -> Figures:
    """Figures of both runs, and how they compare.

    ``loss_difference`` is the held-out loss of evenstep minus that of fixed batches, repeat by
    repeat: the mean, its standard error, and the ends of its 95 % interval if differences are
    normally distributed.
    """
    losses = trained.held_out_losses
    fixed, even = (figures(trained.records[run], losses[run]) for run in RUNS)
    differences = np.subtract(losses["evenstep"], losses["fixed"])
    mean, error = float(differences.mean()), float(differences.std(ddof=1) / REPEATS**0.5)
    return {
        "initial_loss": trained.initial_loss,
        "fixed": fixed,
        "evenstep": even,
        "held_out_losses": dict(losses),
        "loss_difference": {
            "mean": mean,
            "standard_error": error,
            "low": mean - _T_95 * error,
            "high": mean + _T_95 * error,
        },
        "speedup": even["tokens_per_second"] / fixed["tokens_per_second"],
        "processor_speedup": fixed["processor_seconds"] / even["processor_seconds"],
    }


SHOWN = 40
"""Steps in the picture."""


def panels_of(trained: BothTrained, choice: Choice) -> list[StepPanel]:
    """The two panels of the picture: the first repeat."""
    panels = []
    for run, name in zip(RUNS, (f"fixed batches of {choice.batch_size}", "evenstep.Even")):
        first = figures(trained.records[run][:1], trained.held_out_losses[run][:1])
        title = (
            f"{name}: {first['tokens_per_second']:,.0f} real tokens/s, "
            f"{first['padding']:.1%} padding, imbalance {first['imbalance']:.2f}"
        )
        panels.append(StepPanel(title=title, seconds=np.array(first["compute_seconds"])[:SHOWN]))
    return panels


def table_of(result: Mapping[str, Any]) -> str:
    """The table and its meaning, for people.

    Args:
        result: what `figures_of_both` returns, with ``options``, and ``samples``, their name.
    """
    fixed, even, loss = result["fixed"], result["evenstep"], result["loss_difference"]
    changes = {
        "tokens_per_second": f"x {result['speedup']:.2f}",
        "seconds": f"x {even['seconds'] / fixed['seconds']:.2f}",
        "processor_seconds": f"x {1 / result['processor_speedup']:.2f}",
        "held_out_loss": f"{loss['mean']:+.3f} ± {loss['standard_error']:.3f}",
    }
    cells = [
        (name, f"{fixed[key]:{form}}", f"{even[key]:{form}}", changes.get(key, ""))
        for name, key, form in _ROWS
    ]
    options = result["options"]
    title = (
        f"{options['samples']:,} {result['samples']}, {fixed['tokens'] // REPEATS:,} tokens, each "
        f"once in each of {REPEATS} repeats, on {options['world_size']} ranks"
    )
    fixed_name = f"fixed batches of {options['batch_size']}"
    even_name = f"Even({options['fitted_max_tokens']:,})"
    table = text_table(["", fixed_name, even_name, "change"], cells, title=title)
    return f"{table}\n\n{verdict(result)}"


def verdict(result: Mapping[str, Any]) -> str:
    """What was measured, in sentences."""
    fixed, even, loss = result["fixed"], result["evenstep"], result["loss_difference"]
    said = [
        (
            f"In real tokens per second evenstep was {result['speedup']:.2f} times as fast, and "
            f"{result['processor_speedup']:.2f} times by the processor time of the slowest ranks."
        )
    ]
    share = min(fixed["processor_share"], even["processor_share"])
    if share < _PROCESSOR_SHARE:
        said.append(
            "But other programs ran on this machine: in one of the runs a rank had a processor "
            f"for only {share:.0%} of the time it computed, so rely on processor time alone."
        )
    if result["processor_speedup"] <= 1.0:
        said.append("So it was no faster here; where lengths vary little, little is to be gained.")
    contains = "contains" if loss["low"] <= 0 <= loss["high"] else "does not contain"
    said.append(
        f"Held-out loss was {result['initial_loss']:.3f} before training. The 95% interval of what "
        f"evenstep's is above that of fixed batches is {loss['low']:+.3f} to {loss['high']:+.3f}, "
        f"which {contains} 0; docs/learning.md has longer runs of more seeds."
    )
    return textwrap.fill(" ".join(said), _COLUMNS)
