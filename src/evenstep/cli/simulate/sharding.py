"""``evenstep simulate context-parallel``: sequences, cut over context-parallel ranks."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from evenstep.cli.options import MOST_RANKS, Json, LengthsName, Seed
from evenstep.cli.output import note, print_json, progress_bar
from evenstep.plan.argument_checks import check_at_least
from evenstep.plan.lengths import MAX_LENGTH
from evenstep.plan.sharding import METHODS
from evenstep.tools.report.table import text_table
from evenstep.tools.simulate.sharding_run import draw_sequences, run_sharding


def command(
    *,
    lengths: LengthsName,
    context: Annotated[int, typer.Option(help="Tokens of a sequence.", max=MAX_LENGTH)] = 131_072,
    cp: Annotated[
        int, typer.Option(help="Context-parallel ranks that share a sequence.", max=MOST_RANKS)
    ] = 8,
    sequences: Annotated[
        int, typer.Option(help="Sequences; from a file, no more than its documents fill.")
    ] = 120,
    latency: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Attention measured on your GPU with evenstep profile --attention; adaptive "
            "sharding chooses by it.",
            show_default="the number of tiles",
        ),
    ] = None,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Documents cut over context-parallel ranks.

    Shards every sequence with each method, and compares how even the ranks' attention is. Fractions
    in the JSON object are fractions, not percent.

    \b
    Examples:
      evenstep simulate context-parallel --lengths pretrain-128k --context 131072 --cp 8 --json
      evenstep simulate context-parallel --lengths lengths.npy --latency attention.json
    """
    check_at_least(0, seed=seed)
    model = None
    if latency is not None:
        from evenstep.context_parallel.latency import load_latency

        model = load_latency(latency)
    drawn = draw_sequences(lengths, context=context, sequences=sequences, seed=seed)
    if len(drawn) < sequences:
        note(f"{lengths} fills {len(drawn):,} sequences of {context:,} tokens, not {sequences:,}")
    with progress_bar(f"{len(drawn):,} sequences on {cp} ranks") as progress:
        found = run_sharding(drawn, cp, latency=model, progress=progress)
    figures = {
        "policy": "context-parallel",
        "lengths": lengths,
        "seed": seed,
        "context": context,
        "methods": list(METHODS),
        "latency": latency or f"tiles of {found['tile']}",
        **found,
    }
    if json:
        print_json(figures)
    else:
        print(_table(figures))


def _table(figures: dict[str, Any]) -> str:
    """The figures as text: a row for each method of sharding."""
    columns = {
        "pairs": ("pair_imbalance_{}", ".4f"),
        "tiles": ("tile_imbalance_{}", ".4f"),
        "at most": ("tile_imbalance_{}_max", ".4f"),
        "latency": ("latency_over_best_{}", ".4f"),
        "fragments": ("fragments_per_rank_{}", ".1f"),
        "chosen": ("chosen_{}", ","),
    }
    rows = []
    for method in (*METHODS, "adaptive", "oracle"):
        row = [method]
        for key, form in columns.values():
            name = key.format(method.replace("-", "_"))
            row.append(f"{figures[name]:{form}}" if name in figures else "")
        rows.append(row)
    table = text_table(
        ["", *columns],
        rows,
        title=(
            f"{figures['sequences']:,} sequences of {figures['context']:,} tokens over "
            f"{figures['cp']} context-parallel ranks"
        ),
    )
    least, most = figures["tokens_per_rank_min"], figures["tokens_per_rank_max"]
    tokens = f"{least:,}" if least == most else f"{least:,} to {most:,}"
    return f"""{table}

pairs      query-key pairs of the rank with most, over the mean of the ranks
tiles      pairs that the slowest rank computes in tiles of {figures["tile"]}, over the mean of
           the pairs needed; at most: in the worst sequence
latency    of the slowest rank, over that of the best method; predicted from {figures["latency"]}
fragments  per rank; chosen: sequences for which adaptive sharding took the method

tokens per rank {tokens}; padding {figures["padding"]:.2%}
planning and choosing {figures["plan_ms"]:.2f} ms per sequence"""
