"""``evenstep simulate context-parallel``: sequences, cut over context-parallel ranks."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from evenstep.cli.options import MOST_RANKS, Json, LengthsName
from evenstep.cli.output import note, print_json, progress_bar
from evenstep.plan.argument_checks import check_at_least
from evenstep.plan.lengths import MAX_LENGTH
from evenstep.plan.sharding import METHODS
from evenstep.plan.sharding.attention_tiles import TILE
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
    tile: Annotated[
        int, typer.Option(help="Rows and columns that an attention kernel computes together.")
    ] = TILE,
    methods: Annotated[
        str, typer.Option(help="Methods that adaptive sharding chooses from, with commas.")
    ] = ",".join(METHODS),
    latency: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Attention measured on your GPU with evenstep profile --attention; adaptive "
            "sharding chooses by it.",
            show_default="the number of tiles",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the lengths drawn.")] = 0,
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
    chosen_from = tuple(name.strip() for name in methods.split(","))
    model = None
    if latency is not None:
        from evenstep.context_parallel.latency import load_latency

        model = load_latency(latency)
    drawn = draw_sequences(lengths, context=context, sequences=sequences, seed=seed)
    if len(drawn) < sequences:
        note(f"{lengths} fills {len(drawn):,} sequences of {context:,} tokens, not {sequences:,}")
    with progress_bar(f"{len(drawn):,} sequences on {cp} ranks") as progress:
        result = run_sharding(
            drawn, cp, latency=model, tile=tile, methods=chosen_from, progress=progress
        )
    figures = {
        "policy": "context-parallel",
        **result.as_dict(),
        "context": context,
        "methods": list(chosen_from),
        "latency": latency or f"tiles of {tile}",
    }
    if json:
        print_json({**figures, "lengths": lengths, "seed": seed})
    else:
        print(_table(figures))


def _table(figures: dict[str, Any]) -> str:
    """The figures as text: a row for each method of sharding."""
    header = ["", "pairs", "tiles", "at most", "latency", "fragments", "chosen"]
    rows = []
    for method in (*METHODS, "adaptive"):
        key = method.replace("-", "_")
        rows.append(
            [
                method,
                f"{figures[f'pair_imbalance_{key}']:.4f}",
                f"{figures[f'tile_imbalance_{key}']:.4f}",
                f"{figures[f'tile_imbalance_{key}_max']:.4f}",
                f"{figures[f'latency_over_best_{key}']:.4f}",
                f"{figures[f'fragments_per_rank_{key}']:.1f}",
                f"{figures[f'chosen_{key}']:,}" if method in METHODS else "",
            ]
        )
    oracle = (f"{figures[f'tile_imbalance_oracle{end}']:.4f}" for end in ("", "_max"))
    rows.append(["oracle", "", *oracle, "", "", ""])
    least, most = figures["tokens_per_rank_min"], figures["tokens_per_rank_max"]
    tokens = f"{least:,}" if least == most else f"{least:,} to {most:,}"
    table = text_table(
        header,
        rows,
        title=(
            f"{figures['sequences']:,} sequences of {figures['context']:,} tokens over "
            f"{figures['cp']} context-parallel ranks"
        ),
    )
    tile, model, plan_ms = figures["tile"], figures["latency"], figures["plan_ms"]
    lines = (
        table,
        "",
        "pairs      query-key pairs of the rank with most, over the mean of the ranks",
        f"tiles      pairs that the slowest rank computes in tiles of {tile}, over the mean of",
        "           the pairs needed; at most: in the worst sequence",
        f"latency    of the slowest rank, over that of the best method; predicted from {model}",
        "fragments  per rank; chosen: sequences for which adaptive sharding took the method",
        "",
        f"tokens per rank {tokens}; padding {figures['padding']:.2%}",
        f"planning and choosing {plan_ms:.2f} ms per sequence",
    )
    return "\n".join(lines)
