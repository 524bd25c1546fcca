"""``evenstep simulate workload-packing``: pretraining documents, packed on all ranks."""

from __future__ import annotations

from typing import Annotated

import typer

from evenstep.cli.output import print_figures, print_json, progress_bar
from evenstep.cli.shared_options import (
    MOST_RANKS,
    BufferSize,
    Json,
    LengthsName,
    WorldSize,
    parse_buffer_size,
)
from evenstep.plan.argument_checks import MAX_LENGTH, check_at_least
from evenstep.plan.packing import DocumentCost, WorkloadPacking, cut_long
from evenstep.tools.simulate import DISTRIBUTIONS, deal, load_lengths, simulate

_DOCUMENTS = 24_000
"""Of each rank, from a distribution: some 200 steps of 128K tokens and four micro-batches."""
_ROWS = {
    "documents": ("samples", ","),
    "steps": ("steps", ","),
    "imbalance of micro-batches": ("imbalance", ".4f"),
    "the same while documents arrive": ("imbalance_arriving", ".4f"),
    "imbalance, 95th percentile of steps": ("imbalance_p95", ".4f"),
    "composition (1 is random)": ("composition", ".3f"),
    "tokens of a micro-batch": ("tokens_per_micro_batch", ",.0f"),
    "tokens per step, CV": ("tokens_per_update_cv", ".2%"),
    "delay of a token, steps, mean": ("mean_delay_steps", ".2f"),
    "delay of a document, steps, longest": ("max_delay_steps", ","),
    "emitted": ("emitted", ","),
    "missing": ("missing", ","),
    "duplicates": ("duplicates", ","),
    "filler steps": ("filler_steps", ","),
    "planning per document, µs": ("plan_us_per_sample", ".2f"),
    "message per rank and round, bytes": ("message_bytes_per_round", ",.0f"),
}


def command(
    *,
    lengths: LengthsName,
    world_size: WorldSize = 1,
    context: Annotated[
        int, typer.Option(help="Tokens of a micro-batch, on average.", max=MAX_LENGTH)
    ] = 131_072,
    micro_batches: Annotated[
        int, typer.Option(help="Micro-batches of a step on each rank.", max=MOST_RANKS)
    ] = 4,
    max_tokens: Annotated[
        int | None,
        typer.Option(help="Tokens that no micro-batch exceeds.", show_default="1.25 x --context"),
    ] = None,
    over_long: Annotated[
        str,
        typer.Option(help="What happens to documents over --context: split, truncate or error."),
    ] = "split",
    linear: Annotated[
        int,
        typer.Option(
            help="Cost of a token apart from attention: a document of d tokens costs d x d + "
            "linear x d."
        ),
    ] = DocumentCost().linear,
    buffer_size: BufferSize = "auto",
    samples: Annotated[
        int | None,
        typer.Option(
            help="Documents per rank, at most.",
            show_default=f"the whole file; {_DOCUMENTS:,} from a distribution",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the lengths drawn.")] = 0,
    json: Json = False,
) -> None:
    """Documents in micro-batches of equal cost.

    All ranks run in this process, over one epoch. Fractions in the JSON object are fractions, not
    percent.

    \b
    Examples:
      evenstep simulate workload-packing --lengths pretrain-128k --micro-batches 4
      evenstep simulate workload-packing --lengths lengths.npy --world-size 8 --json
    """
    check_at_least(1, world_size=world_size, samples=samples)
    check_at_least(0, seed=seed)
    policy = WorkloadPacking(
        context,
        micro_batches=micro_batches,
        max_tokens=max_tokens,
        cost=DocumentCost(linear=linear),
    )
    if samples is None and lengths in DISTRIBUTIONS:
        samples = _DOCUMENTS
    wanted = None if samples is None else samples * world_size
    drawn = load_lengths(lengths, samples=wanted, seed=seed)
    documents = cut_long(drawn, context, over_long).lengths
    shards = deal(len(documents), world_size, seed)
    held = parse_buffer_size(buffer_size)
    with progress_bar(f"workload-packing on {world_size} ranks") as progress:
        result = simulate(
            policy,
            [documents[shard] for shard in shards],
            buffer_size=held,
            seed=seed,
            identities=shards,
            progress=progress,
        )
    figures = {
        **result.as_dict(),
        "tokens_per_micro_batch": result.tokens_per_step / (world_size * micro_batches),
        "context": context,
        "micro_batches": micro_batches,
        "max_tokens": policy.planning.cap,
        "max_delay": policy.planning.max_delay,
        "linear": linear,
        "buffer_size": held,
        "over_long": over_long,
    }
    if json:
        print_json({**figures, "lengths": lengths, "seed": seed})
    else:
        print_figures(f"workload-packing over {lengths}, {world_size} ranks", figures, _ROWS)
