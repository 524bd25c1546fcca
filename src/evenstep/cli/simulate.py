"""``evenstep simulate``: what a policy makes of given lengths."""

from __future__ import annotations

from typing import Annotated

import typer

from evenstep.cli.choices import POLICIES, PolicyOptions, parse_cost, parse_policy
from evenstep.cli.output import note, print_json, print_table, progress_bar
from evenstep.plan.lengths import Lengths
from evenstep.plan.policy import check_at_least
from evenstep.simulate import DISTRIBUTIONS, SimulationResult, deal, load_lengths, simulate

__all__ = ["register"]

_SAMPLES_PER_RANK = 12_000
_MAX_TOKENS = 16_384


def register(app: typer.Typer) -> None:
    """Adds the command to `app`."""
    app.command("simulate")(command)


def command(
    policy: Annotated[str, typer.Argument(metavar="POLICY", help=f"One of {', '.join(POLICIES)}.")],
    lengths: Annotated[
        str,
        typer.Option(
            help=f"FILE.npy, FILE.parquet:COLUMN or one of {', '.join(DISTRIBUTIONS)}.",
        ),
    ],
    world_size: Annotated[int, typer.Option(help="Data-parallel ranks.")],
    samples: Annotated[
        int | None,
        typer.Option(
            help="Samples per rank, at most.",
            show_default=f"the whole file; {_SAMPLES_PER_RANK:,} of a distribution",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Decides lengths, shuffling and group order.")] = 0,
    max_tokens: Annotated[
        int | None,
        typer.Option(
            help="Token budget of a group.",
            show_default=f"what suits the distribution; of a file, {_MAX_TOKENS:,} or its longest",
        ),
    ] = None,
    target_tokens: Annotated[
        int | None,
        typer.Option(
            help="What groups of even should come to, if that is less than --max-tokens.",
            show_default="--max-tokens",
        ),
    ] = None,
    batch_size: Annotated[
        int, typer.Option(help="Samples per rank and step, of policies that fix them.")
    ] = 8,
    buffer_size: Annotated[int, typer.Option(help="Samples a rank may hold in its window.")] = 1024,
    exhausted: Annotated[
        str, typer.Option(help="What happens when a rank has nothing left: pad or stop.")
    ] = "pad",
    cost: Annotated[
        str,
        typer.Option(
            help="What imbalance and efficiency are measured in: padded-tokens, tokens or "
            "transformer:layers=32,hidden_size=4096,heads=32,ffn_size=14336."
        ),
    ] = "padded-tokens",
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Run a policy over lengths, and report what it gains.

    All ranks run in this process. Fractions in the JSON object are fractions, not percent.

    \b
    Example:
      evenstep simulate token-budget --lengths ultrachat --world-size 8 --json
    """
    check_at_least(1, world_size=world_size, samples=samples)
    check_at_least(0, seed=seed)
    known = DISTRIBUTIONS.get(lengths)
    if samples is None and known:
        samples = _SAMPLES_PER_RANK
    wanted = None if samples is None else samples * world_size
    drawn = load_lengths(lengths, samples=wanted, seed=seed)
    if wanted is not None and len(drawn) < wanted:
        note(f"{lengths} holds {len(drawn):,} samples, fewer than {samples:,} for each rank")
    if max_tokens is None:
        max_tokens = known.max_tokens if known else max(_MAX_TOKENS, int(drawn.max()))
    chosen = parse_policy(
        policy,
        PolicyOptions(
            max_tokens=max_tokens,
            batch_size=batch_size,
            cost=parse_cost(cost),
            lengths=Lengths(drawn),
            target_tokens=target_tokens,
        ),
    )
    shards = deal(len(drawn), world_size, seed)
    with progress_bar(f"{policy} on {world_size} ranks") as progress:
        result = simulate(
            chosen,
            [drawn[shard] for shard in shards],
            buffer_size=buffer_size,
            exhausted=exhausted,
            seed=seed,
            identities=shards,
            progress=progress,
        )
    if json:
        setting = {
            "lengths": lengths,
            "seed": seed,
            "buffer_size": buffer_size,
            "exhausted": exhausted,
            "cost": cost,
            "options": dict(chosen.options()),
        }
        print_json({**result.as_dict(), **setting})
    else:
        print_table(f"{policy} over {lengths}, {world_size} ranks", _rows(result))


def _rows(result: SimulationResult) -> dict[str, str]:
    rows = {
        "samples": f"{result.samples:,}",
        "steps": f"{result.steps:,}",
        "padding": f"{result.padding:.2%}",
        "imbalance": f"{result.imbalance:.4f}",
        "imbalance, 95th percentile of steps": f"{result.imbalance_p95:.4f}",
        "efficiency": f"{result.efficiency:.2%}",
        "samples per step": f"{result.samples_per_step:,.2f}",
        "real tokens per step": f"{result.tokens_per_step:,.0f}",
        "emitted": f"{result.emitted:,}",
        "missing": f"{result.missing:,}",
        "duplicates": f"{result.duplicates:,}",
        "sampler padding": f"{result.sampler_padding:,}",
        "filler steps": f"{result.filler_steps:,}",
        "longest delay of a sample": f"{result.max_delay_steps:,} steps",
        "planning per sample": f"{result.plan_us_per_sample:.2f} µs",
        "message per rank and round": f"{result.message_bytes_per_round:,.0f} bytes",
    }
    for name, count in (("dropped", result.dropped), ("undelivered", result.undelivered)):
        if count:
            rows[name] = f"{count:,}"
    return rows
