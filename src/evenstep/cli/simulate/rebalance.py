"""``evenstep simulate rebalance``: rollouts, divided over ranks after they are generated."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from evenstep.cli.cost_option import parse_cost
from evenstep.cli.options import MOST_RANKS, CostName, Json, LengthsName, Seed
from evenstep.cli.output import note, print_json, progress_bar
from evenstep.plan.argument_checks import check_at_least
from evenstep.tools.report.table import text_table
from evenstep.tools.simulate import DISTRIBUTIONS
from evenstep.tools.simulate.rebalance_run import draw_updates, run_rebalance

_ROWS = {"evenstep": "evenstep", "verl": "as verl does", "plain": "plain split"}


def command(
    *,
    lengths: LengthsName = "rollouts",
    ranks: Annotated[int, typer.Option(help="Data-parallel ranks.", max=MOST_RANKS)] = 64,
    max_tokens: Annotated[
        int | None,
        typer.Option(
            help="Tokens of a micro-batch, at most.",
            show_default="what suits the distribution; for a file twice its longest",
        ),
    ] = None,
    padded: Annotated[
        bool, typer.Option("--padded", help="Micro-batches are padded to their longest sequence.")
    ] = False,
    samples: Annotated[int, typer.Option(help="Sequences of each rank in an update.")] = 32,
    steps: Annotated[int, typer.Option(help="Updates, at most.")] = 5,
    cost: CostName = "usual",
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Rollouts in micro-batches of equal cost.

    Divides the sequences of each update as evenstep.rebalance does, and compares with a plain split
    in the order of generation, and with partitions by Karmarkar-Karp as in verl: sequences to
    ranks, then those of each rank to its micro-batches. Files keep their order, and hold prompt and
    answer in one length. Fractions in the JSON object are fractions, not percent.

    \b
    Examples:
      evenstep simulate rebalance --ranks 64 --max-tokens 32768
      evenstep simulate rebalance --lengths rollouts.parquet:tokens --ranks 8 --padded --json
    """
    check_at_least(0, seed=seed)
    updates = draw_updates(lengths, ranks=ranks, samples=samples, steps=steps, seed=seed)
    if len(updates) < steps or len(updates[0]) < samples * ranks:
        note(f"{lengths} suffices for {len(updates):,} x {len(updates[0]):,} sequences")
    if max_tokens is None:
        known = DISTRIBUTIONS.get(lengths)
        longest = max(int(each.max()) for each in updates)
        max_tokens = known.max_tokens if known else 2 * longest
    with progress_bar(f"{len(updates):,} updates on {ranks:,} ranks") as progress:
        found, _ = run_rebalance(
            updates,
            ranks=ranks,
            max_tokens=max_tokens,
            packed=not padded,
            cost=parse_cost(cost),
            progress=progress,
        )
    figures = {
        "policy": "rebalance",
        "lengths": lengths,
        "ranks": ranks,
        "max_tokens": max_tokens,
        "packed": not padded,
        "cost": cost,
        "samples": len(updates[0]) // ranks,
        "steps": len(updates),
        "seed": seed,
        **found,
    }
    if json:
        print_json(figures)
    else:
        print(_table(figures))


def _table(figures: dict[str, Any]) -> str:
    columns = {
        "time": ("time_over_evenstep", ".3f"),
        "imbalance": ("imbalance", ".4f"),
        "of ranks": ("rank_imbalance", ".4f"),
        "micro-batches": ("micro_batches", ".1f"),
        "fill": ("fill", ".1%"),
        "fullest": ("fullest", ".1%"),
        "planning": ("plan_ms", ".1f"),
    }
    rows = []
    for way, name in _ROWS.items():
        each = figures if way == "evenstep" else figures[way]
        rows.append([name, *(f"{each[key]:{form}}" for key, form in columns.values())])
    kind = "packed" if figures["packed"] else "padded"
    title = (
        f"{figures['steps']:,} updates of {figures['samples'] * figures['ranks']:,} sequences on "
        f"{figures['ranks']:,} ranks, {kind} micro-batches of {figures['max_tokens']:,} tokens"
    )
    table = text_table(["", *columns], rows, title=title)
    bound = figures.get("imbalance_least")
    least = "" if bound is None else f", {bound:.4f} at best"
    return f"""{table}

time           of all micro-batches, each as long as its slowest rank, over evenstep's
imbalance      the same over the mean of the ranks{least}; of ranks: of whole updates
micro-batches  of a rank in an update; at least {figures["micro_batches_least"]:.1f} are needed
fill           tokens over room; fullest: of the fullest micro-batch, over 100 % does not fit
planning       ms an update"""
