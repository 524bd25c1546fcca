"""``evenstep simulate``: what a policy makes of given lengths."""

from __future__ import annotations

from typing import Annotated

import typer

from evenstep.cli.cost_option import parse_cost
from evenstep.cli.output import note, print_json, print_table, progress_bar
from evenstep.cli.simulate_options import given, refuse_unused
from evenstep.cli.simulate_packing import PACKING_DOCUMENTS, packing_rows, simulate_packing
from evenstep.cli.simulate_sharding import SEQUENCES, sharding_table, simulate_sharding
from evenstep.errors import ConfigurationError
from evenstep.plan.argument_checks import check_at_least
from evenstep.plan.lengths import Lengths
from evenstep.plan.policies.by_name import POLICIES, PolicyOptions
from evenstep.plan.sharding import METHODS
from evenstep.plan.sharding.attention_tiles import TILE
from evenstep.tools.simulate import DISTRIBUTIONS, SimulationResult, deal, load_lengths, simulate

__all__ = ["register"]

_SAMPLES_PER_RANK = 12_000
_MAX_TOKENS = 16_384
_PACKING = "workload-packing"
_SHARDING = "context-parallel"


def register(app: typer.Typer) -> None:
    """Adds the command to `app`."""
    app.command("simulate")(command)


def command(
    invocation: typer.Context,
    policy: Annotated[
        str,
        typer.Argument(
            metavar="POLICY",
            help=f"One of {', '.join(POLICIES)}; or {_PACKING} or {_SHARDING}, which have options "
            "of their own.",
        ),
    ],
    lengths: Annotated[
        str,
        typer.Option(
            help=f"FILE.npy, FILE.parquet:COLUMN or one of {', '.join(DISTRIBUTIONS)}.",
        ),
    ],
    world_size: Annotated[
        int | None,
        typer.Option(
            help="Data-parallel ranks.",
            show_default=f"1 for {_PACKING} and {_SHARDING}, else needed",
        ),
    ] = None,
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
            help="What imbalance and efficiency are measured in: padded-tokens, tokens, "
            "calibration:FILE.json or "
            "transformer:layers=32,hidden_size=4096,heads=32,ffn_size=14336."
        ),
    ] = "padded-tokens",
    context: Annotated[
        int,
        typer.Option(
            help=f"{_PACKING}: tokens of a micro-batch on average; {_SHARDING}: of a sequence."
        ),
    ] = 131_072,
    micro_batches: Annotated[int, typer.Option(help=f"{_PACKING}: in a step.")] = 4,
    queues: Annotated[
        int, typer.Option(help=f"{_PACKING}: classes of outliers, which wait for their like.")
    ] = 2,
    steady: Annotated[
        bool,
        typer.Option(
            "--steady",
            help=f"{_PACKING}: no queues, as --queues 0; also keep the tokens of a step steady.",
        ),
    ] = False,
    max_delay: Annotated[
        int | None,
        typer.Option(
            help=f"{_PACKING}: steps after which a document goes in any case.",
            show_default="as the policy: 16 without queues, else 64",
        ),
    ] = None,
    whole: Annotated[
        bool,
        typer.Option(
            "--whole", help=f"{_PACKING}: keep documents whole, which original packing cuts."
        ),
    ] = False,
    linear: Annotated[
        int,
        typer.Option(help=f"{_PACKING}: a document of d tokens is d x d + linear x d of work."),
    ] = 24_576,
    stages: Annotated[int, typer.Option(help=f"{_PACKING}: of the pipeline.")] = 4,
    end: Annotated[
        str,
        typer.Option(
            help=f"{_PACKING}: drain trains on all that waits at the end; carry keeps it."
        ),
    ] = "drain",
    cp: Annotated[int, typer.Option(help=f"{_SHARDING}: context-parallel ranks.")] = 8,
    sequences: Annotated[
        int, typer.Option(help=f"{_SHARDING}: how many; of a file at most what it fills.")
    ] = SEQUENCES,
    tile: Annotated[
        int, typer.Option(help=f"{_SHARDING}: rows and columns that a kernel computes together.")
    ] = TILE,
    methods: Annotated[
        str, typer.Option(help=f"{_SHARDING}: what adaptive sharding chooses from.")
    ] = ",".join(METHODS),
    latency: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help=f"{_SHARDING}: attention measured on your GPU, which decides.",
            show_default="the number of tiles",
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Run a policy over lengths, and report what it gains.

    All ranks run in this process. Fractions in the JSON object are fractions, not percent.

    \b
    Examples:
      evenstep simulate even --lengths ultrachat --world-size 8 --json
      evenstep simulate workload-packing --lengths pretrain-128k --micro-batches 4 --queues 2
      evenstep simulate context-parallel --lengths pretrain-128k --context 131072 --cp 8 --json
    """
    check_at_least(1, world_size=world_size, samples=samples)
    check_at_least(0, seed=seed, queues=queues)
    refuse_unused(invocation, policy)
    known = DISTRIBUTIONS.get(lengths)
    if policy == _SHARDING:
        if world_size not in (None, 1):
            raise ConfigurationError(
                f"--world-size {world_size}: {_SHARDING} is simulated on one data-parallel rank; "
                "say with --cp over how many ranks each sequence is cut"
            )
        if samples is not None:
            raise ConfigurationError(
                f"--samples {samples}: {_SHARDING} draws as many documents as fill --sequences"
            )
        figures = simulate_sharding(
            lengths,
            context=context,
            ranks=cp,
            sequences=sequences,
            seed=seed,
            tile=tile,
            methods=methods,
            latency=latency,
        )
        if json:
            print_json({**figures, "lengths": lengths, "seed": seed})
        else:
            print(sharding_table(figures))
        return
    if policy == _PACKING:
        if steady and queues and given(invocation, "queues"):
            raise ConfigurationError(f"--steady and --queues {queues} exclude each other; give one")
        if world_size not in (None, 1):
            raise ConfigurationError(
                f"--world-size {world_size}: {_PACKING} is simulated on one rank; its ranks agree "
                "on what each would do"
            )
        if samples is None and known:
            samples = PACKING_DOCUMENTS
        figures = simulate_packing(
            load_lengths(lengths, samples=samples, seed=seed),
            context=context,
            micro_batches=micro_batches,
            queues=queues,
            max_tokens=max_tokens,
            max_delay=max_delay,
            steady=steady,
            whole=whole,
            linear=linear,
            stages=stages,
            end=end,
        )
        if json:
            print_json({**figures, "lengths": lengths, "seed": seed})
        else:
            print_table(f"{policy} over {lengths}", packing_rows(figures))
        return
    if world_size is None:
        raise ConfigurationError("--world-size is needed: the number of data-parallel ranks")
    if samples is None and known:
        samples = _SAMPLES_PER_RANK
    wanted = None if samples is None else samples * world_size
    drawn = load_lengths(lengths, samples=wanted, seed=seed)
    if wanted is not None and len(drawn) < wanted:
        note(f"{lengths} holds {len(drawn):,} samples, fewer than {samples:,} for each rank")
    if max_tokens is None:
        max_tokens = known.max_tokens if known else max(_MAX_TOKENS, int(drawn.max()))
    chosen = POLICIES[policy](
        PolicyOptions(
            max_tokens=max_tokens,
            batch_size=batch_size,
            cost=parse_cost(cost),
            lengths=Lengths(drawn),
            target_tokens=target_tokens,
        )
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
