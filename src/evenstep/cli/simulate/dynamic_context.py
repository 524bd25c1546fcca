"""``evenstep simulate dynamic-context-parallel``: as many ranks for a document as it needs."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from evenstep.cli.options import LINEAR, MOST_RANKS, Json, LengthsName, Linear, Seed
from evenstep.cli.output import print_json, progress_bar
from evenstep.plan.argument_checks import check_at_least
from evenstep.plan.dynamic_context import DynamicContext
from evenstep.plan.lengths import MAX_LENGTH
from evenstep.plan.packing import DocumentCost
from evenstep.tools.report.table import text_table
from evenstep.tools.simulate.dynamic_context_run import draw_steps, run_dynamic_context


def command(
    *,
    lengths: LengthsName,
    ranks: Annotated[
        int,
        typer.Option(help="Ranks: data-parallel times context-parallel.", max=MOST_RANKS),
    ] = 64,
    tokens_per_rank: Annotated[
        int, typer.Option(help="Tokens of a rank in a micro-batch, at most.", max=MAX_LENGTH)
    ] = 16_384,
    micro_batches: Annotated[
        int, typer.Option(help="Full micro-batches that the documents of a step would make.")
    ] = 4,
    powers_of_two: Annotated[
        bool, typer.Option("--powers-of-two", help="Groups have 1, 2, 4, ... ranks.")
    ] = False,
    linear: Linear = LINEAR,
    steps: Annotated[int, typer.Option(help="Steps.")] = 4,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Documents on as many ranks as they need.

    Plans steps of documents with new groups in every micro-batch, and compares with groups of a
    fixed number of ranks, and with ranks chosen by length alone, as Megatron-LM's schedulers do.
    Fractions in the JSON object are fractions, not percent.

    \b
    Examples:
      evenstep simulate dynamic-context-parallel --lengths pretrain-128k --ranks 64 --json
      evenstep simulate dynamic-context-parallel --lengths lengths.npy --powers-of-two
    """
    check_at_least(0, seed=seed)
    options = DynamicContext(
        ranks=ranks,
        tokens_per_rank=tokens_per_rank,
        cost=DocumentCost(linear=linear),
        powers_of_two=powers_of_two,
    )
    drawn = draw_steps(lengths, options, micro_batches=micro_batches, steps=steps, seed=seed)
    with progress_bar(f"{steps:,} steps on {ranks:,} ranks") as progress:
        found = run_dynamic_context(drawn, options, progress=progress)
    figures = {
        "policy": "dynamic-context-parallel",
        "lengths": lengths,
        "ranks": ranks,
        "tokens_per_rank": tokens_per_rank,
        "documents": len(drawn[0]),
        "longest": max(int(each.max()) for each in drawn),
        "powers_of_two": powers_of_two,
        "seed": seed,
        **found,
    }
    if json:
        print_json(figures)
    else:
        print(_table(figures))


def _table(figures: dict[str, Any]) -> str:
    rows = {"dynamic": figures, "by length alone": figures["by_length"]}
    rows |= {f"groups of {size}": each for size, each in figures["fixed"].items()}
    columns = {
        "time": ("step_time_over_bound", ".3f"),
        "imbalance": ("imbalance", ".4f"),
        "worst": ("imbalance_worst", ".3f"),
        "waiting": ("communication_share", ".1%"),
        "ranks": ("ranks_per_document_mean", ".1f"),
        "at most": ("ranks_per_document_max", ","),
        "micro-batches": ("micro_batches", ".1f"),
    }
    table = text_table(
        ["", *columns],
        [
            [name, *(f"{each[key]:{form}}" for key, form in columns.values())]
            for name, each in rows.items()
        ],
        title=(
            f"{figures['steps']:,} steps of {figures['documents']:,} documents on "
            f"{figures['ranks']:,} ranks of {figures['tokens_per_rank']:,} tokens"
        ),
    )
    return f"""{table}

time        of a step, over the least possible
imbalance   work of the slowest rank over the mean, in whole tiles; worst: micro-batch
waiting     share of the time in which exchange is waited for
ranks       of a document, mean and most

tokens per rank {figures["tokens_per_rank_mean"]:,.0f}, \
at most {figures["tokens_per_rank_max"]:,}; planning {figures["plan_ms"]:.1f} ms a step"""
