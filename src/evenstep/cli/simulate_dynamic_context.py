"""``evenstep simulate dynamic-context-parallel``: as many ranks for a document as it needs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from evenstep.arrays import Int64Array
from evenstep.cli.options import MOST_RANKS, Json, LengthsName
from evenstep.cli.output import note, print_json, progress_bar
from evenstep.plan.argument_checks import check_at_least
from evenstep.plan.dynamic_context import DynamicContext, Exchange, plan_dynamic_context
from evenstep.plan.lengths import MAX_LENGTH
from evenstep.plan.packing import DocumentCost
from evenstep.tools.report.table import text_table
from evenstep.tools.simulate.dynamic_context_run import draw_steps, run_dynamic_context

_COST, _EXCHANGE = DocumentCost(), Exchange()


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
    multiple_of: Annotated[
        int, typer.Option(help="The number of micro-batches is a multiple of this.")
    ] = 1,
    powers_of_two: Annotated[
        bool, typer.Option("--powers-of-two", help="Groups have 1, 2, 4, ... ranks.")
    ] = False,
    linear: Annotated[
        int,
        typer.Option(
            help="Cost of a token apart from attention: a document of d tokens costs d x d + "
            "linear x d."
        ),
    ] = _COST.linear,
    within: Annotated[
        int, typer.Option(help="Cost of a token's keys and values sent within a node.")
    ] = _EXCHANGE.within,
    between: Annotated[
        int, typer.Option(help="The same, to groups of more ranks than a node has.")
    ] = _EXCHANGE.between,
    node: Annotated[int, typer.Option(help="Ranks of a node.")] = _EXCHANGE.node,
    steps: Annotated[int, typer.Option(help="Steps.")] = 4,
    baselines: Annotated[
        bool, typer.Option(help="Also measure fixed groups, and ranks by length alone.")
    ] = True,
    plot: Annotated[
        Path | None, typer.Option(help="PNG file for a picture of the first step.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the lengths drawn.")] = 0,
    json: Json = False,
) -> None:
    """Documents on as many ranks as they need.

    Plans steps of documents, every micro-batch anew, and compares with groups of a fixed number of
    ranks, and with ranks chosen by length alone, as Megatron-LM's schedulers do. Fractions in the
    JSON object are fractions, not percent.

    \b
    Examples:
      evenstep simulate dynamic-context-parallel --lengths pretrain-128k --ranks 64 --json
      evenstep simulate dynamic-context-parallel --lengths lengths.npy --plot ranks.png
    """
    check_at_least(0, seed=seed)
    options = DynamicContext(
        ranks=ranks,
        tokens_per_rank=tokens_per_rank,
        cost=DocumentCost(linear=linear),
        exchange=Exchange(within=within, between=between, node=node),
        multiple_of=multiple_of,
        powers_of_two=powers_of_two,
    )
    drawn = draw_steps(lengths, options, micro_batches=micro_batches, steps=steps, seed=seed)
    with progress_bar(f"{steps:,} steps on {ranks:,} ranks") as progress:
        result = run_dynamic_context(drawn, options, baselines=baselines, progress=progress)
    figures = {
        "policy": "dynamic-context-parallel",
        "lengths": lengths,
        "ranks": ranks,
        "tokens_per_rank": tokens_per_rank,
        "documents": len(drawn[0]),
        "longest": max(int(each.max()) for each in drawn),
        "powers_of_two": powers_of_two,
        "seed": seed,
        **result.as_dict(),
    }
    if plot is not None:
        _draw(drawn[0], options, figures, plot)
    if json:
        print_json(figures)
    else:
        print(_table(figures))


def _draw(
    lengths: Int64Array, options: DynamicContext, figures: dict[str, Any], path: Path
) -> None:
    from evenstep.tools.report.ranks_plot import RanksPanel, plot_ranks
    from evenstep.tools.simulate.dynamic_context_baselines import (
        fixed_groups,
        powers_of_two_by_length,
    )
    from evenstep.tools.simulate.dynamic_context_run import measure_plan

    plans = {"dynamic groups": plan_dynamic_context(lengths, options)}
    if "by_length" in figures:
        plans["ranks by length alone"] = powers_of_two_by_length(lengths, options)
    fixed = fixed_groups(lengths, figures.get("best_fixed", 1), options)
    if fixed is not None and "best_fixed" in figures:
        plans[f"groups of {figures['best_fixed']} ranks"] = fixed
    panels = [
        RanksPanel(title=name, plan=plan, time=measure_plan(plan, lengths, options).time)
        for name, plan in plans.items()
    ]
    plot_ranks(panels, lengths, path, title=f"{len(lengths):,} documents on {options.ranks} ranks")
    note(f"the picture of the first step is in {path}")


def _table(figures: dict[str, Any]) -> str:
    rows = {"dynamic": figures}
    if "by_length" in figures:
        rows["by length alone"] = figures["by_length"]
    rows |= {f"groups of {size}": each for size, each in figures["fixed"].items()}
    header = ["", "time", "imbalance", "worst", "waiting", "ranks", "at most", "micro-batches"]
    table = text_table(
        header,
        [
            [
                name,
                f"{each['step_time_over_bound']:.3f}",
                f"{each['imbalance']:.4f}",
                f"{each['imbalance_worst']:.3f}",
                f"{each['communication_share']:.1%}",
                f"{each['ranks_per_document_mean']:.1f}",
                f"{each['ranks_per_document_max']:,}",
                f"{each['micro_batches']:.1f}",
            ]
            for name, each in rows.items()
        ],
        title=(
            f"{figures['steps']:,} steps of {figures['documents']:,} documents on "
            f"{figures['ranks']:,} ranks of {figures['tokens_per_rank']:,} tokens"
        ),
    )
    tokens = (
        f"tokens per rank {figures['tokens_per_rank_mean']:,.0f}, "
        f"at most {figures['tokens_per_rank_max']:,}"
    )
    lines = (
        table,
        "",
        "time        of a step, over the least possible",
        "imbalance   work of the slowest rank over the mean, in whole tiles; worst: micro-batch",
        "waiting     share of the time in which exchange is waited for",
        "ranks       of a document, mean and most",
        "",
        f"{tokens}; planning {figures['plan_ms']:.1f} ms a step",
    )
    return "\n".join(lines)
