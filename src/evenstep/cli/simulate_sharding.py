"""What ``evenstep simulate context-parallel`` runs: sequences, cut over context-parallel ranks."""

from __future__ import annotations

from typing import Any

from evenstep.cli.output import note, progress_bar
from evenstep.plan.sharding import METHODS, KernelLatency
from evenstep.tools.report.table import text_table
from evenstep.tools.simulate.sharding_run import draw_sequences, run_sharding

__all__ = ["SEQUENCES", "sharding_table", "simulate_sharding"]

SEQUENCES = 120
"""Drawn from a distribution by default, and taken of a file at most."""


def simulate_sharding(
    lengths: str,
    *,
    context: int,
    ranks: int,
    sequences: int,
    seed: int,
    tile: int,
    methods: str,
    latency: str | None,
) -> dict[str, Any]:
    """The figures by name, and the settings that they are of.

    Args:
        methods: names between commas.
        latency: path of a calibration; None counts tiles.
    """
    chosen_from = tuple(name.strip() for name in methods.split(","))
    model = None if latency is None else _load(latency)
    drawn = draw_sequences(lengths, context=context, sequences=sequences, seed=seed)
    if len(drawn) < sequences:
        note(f"{lengths} fills {len(drawn):,} sequences of {context:,} tokens, not {sequences:,}")
    with progress_bar(f"{len(drawn):,} sequences on {ranks} ranks") as progress:
        result = run_sharding(
            drawn,
            ranks,
            latency=model,
            tile=tile,
            methods=chosen_from,
            progress=progress,
        )
    return {
        "policy": "context-parallel",
        **result.as_dict(),
        "context": context,
        "methods": list(chosen_from),
        "latency": latency or f"tiles of {tile}",
    }


def sharding_table(figures: dict[str, Any]) -> str:
    """The figures as text: a row for each way of sharding."""
    header = ["", "pairs", "tiles", "at most", "latency", "fragments", "chosen"]
    rows = []
    for way in (*METHODS, "adaptive"):
        key = way.replace("-", "_")
        rows.append(
            [
                way,
                f"{figures[f'pair_imbalance_{key}']:.4f}",
                f"{figures[f'tile_imbalance_{key}']:.4f}",
                f"{figures[f'tile_imbalance_{key}_max']:.4f}",
                f"{figures[f'latency_over_best_{key}']:.4f}",
                f"{figures[f'fragments_per_rank_{key}']:.1f}",
                f"{figures[f'chosen_{key}']:,}" if way in METHODS else "",
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
        "pairs      query-key pairs of the rank that has most, over the mean of the ranks",
        f"tiles      pairs that the slowest rank computes in tiles of {tile}, over the mean of",
        "           the pairs needed; at most: of the worst sequence",
        f"latency    of the slowest rank, over that of the best way; predicted from {model}",
        "fragments  of a rank; chosen: sequences for which adaptive sharding took it",
        "",
        f"tokens of a rank {tokens}; padding {figures['padding']:.2%}",
        f"planning and choosing {plan_ms:.2f} ms a sequence",
    )
    return "\n".join(lines)


def _load(path: str) -> KernelLatency:
    from evenstep.context_parallel.latency import load_latency

    return load_latency(path)
