"""``evenstep simulate``: what a policy makes of given lengths. Each policy is a command.

``evenstep simulate workload-packing`` packs pretraining documents on all ranks; the others are
policies of the loader.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from evenstep.arrays import Int64Array
from evenstep.cli.output import note, print_figures, print_json, progress_bar
from evenstep.cli.shared_options import (
    MOST_RANKS,
    BufferSize,
    CostName,
    Json,
    LengthsName,
    WorldSize,
    parse_buffer_size,
    parse_cost,
)
from evenstep.errors import ConfigurationError
from evenstep.plan import Policy
from evenstep.plan.packing import DocumentCost, WorkloadPacking
from evenstep.plan.policies.by_name import PolicyOptions
from evenstep.plan.too_long import pieces_of
from evenstep.plan.update_size import UpdateSize, resolve_accumulate
from evenstep.plan.value_checks import AUTO, MAX_LENGTH, check_at_least
from evenstep.tools.simulate import (
    DISTRIBUTIONS,
    SimulationResult,
    deal,
    load_lengths,
    simulate,
)
from evenstep.tools.simulate.yardsticks import COMPARED

_DOCUMENTS = 24_000
"""Of each rank, from a distribution: some 200 steps of 128K tokens and four micro-batches."""


def pack_documents(
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
    too_long: Annotated[
        str, typer.Option(help="Documents over --context: split, truncate, skip or error.")
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
    drawn = _drawn(lengths, samples, _DOCUMENTS, world_size, seed)
    policy = WorkloadPacking(
        context,
        micro_batches=micro_batches,
        max_tokens=max_tokens,
        cost=DocumentCost(linear=linear),
    )
    documents = pieces_of(drawn, context, too_long).lengths
    held = parse_buffer_size(buffer_size)
    result = _run(policy, documents, world_size, seed, buffer_size=held)
    figures = {
        **result.as_dict(),
        "tokens_per_micro_batch": result.tokens_per_step / (world_size * micro_batches),
        "context": context,
        "micro_batches": micro_batches,
        "max_tokens": policy.planning.cap,
        "max_delay": policy.planning.max_delay,
        "linear": linear,
        "buffer_size": held,
        "too_long": too_long,
    }
    if json:
        print_json({**figures, "lengths": lengths, "seed": seed})
    else:
        print_figures(f"workload-packing over {lengths}, {world_size} ranks", figures, _ROWS)


def _drawn(spec: str, samples: int | None, usual: int, world_size: int, seed: int) -> Int64Array:
    """The lengths of all ranks' samples.

    Args:
        samples: of each rank; None is a whole file, and `usual` of a distribution.
    """
    check_at_least(1, world_size=world_size, samples=samples)
    check_at_least(0, seed=seed)
    if samples is None and spec in DISTRIBUTIONS:
        samples = usual
    wanted = None if samples is None else samples * world_size
    drawn = load_lengths(spec, samples=wanted, seed=seed)
    if wanted is not None and len(drawn) < wanted:
        note(f"{spec} holds {len(drawn):,} samples, fewer than {samples:,} for each rank")
    return drawn


def _run(
    policy: Policy, lengths: Int64Array, world_size: int, seed: int, **options: Any
) -> SimulationResult:
    """An epoch over these lengths, dealt as by a distributed sampler."""
    shards = deal(len(lengths), world_size, seed)
    of_ranks = [lengths[shard] for shard in shards]
    with progress_bar(f"{policy.name} on {world_size} ranks") as progress:
        return simulate(
            policy, of_ranks, seed=seed, identities=shards, progress=progress, **options
        )


_SAMPLES_PER_RANK = 12_000
_MAX_TOKENS = 16_384
_MEASURED = 4096  # samples that decide how large groups of an update are

_ROWS = {
    "samples": ("samples", ","),
    "steps": ("steps", ","),
    "steps of an update": ("accumulate", ","),
    "padding": ("padding", ".2%"),
    "imbalance": ("imbalance", ".4f"),
    "imbalance, 95th percentile of steps": ("imbalance_p95", ".4f"),
    "efficiency": ("efficiency", ".2%"),
    "samples per step": ("samples_per_step", ",.2f"),
    "real tokens per step": ("tokens_per_step", ",.0f"),
    "composition (1 is random)": ("composition", ".3f"),
    "tokens of a micro-batch": ("tokens_per_micro_batch", ",.0f"),
    "samples per update": ("samples_per_update", ",.2f"),
    "real tokens per update, CV": ("tokens_per_update_cv", ".2%"),
    "emitted": ("emitted", ","),
    "missing": ("missing", ","),
    "duplicates": ("duplicates", ","),
    "sampler padding": ("sampler_padding", ","),
    "dropped": ("dropped", ","),
    "undelivered": ("undelivered", ","),
    "filler steps": ("filler_steps", ","),
    "longest delay of a sample, steps": ("max_delay_steps", ","),
    "mean delay of a token, steps": ("mean_delay_steps", ".2f"),
    "planning per sample, µs": ("plan_us_per_sample", ".2f"),
}
_GROUP_HELP = """Run a policy over lengths, and report what it gains. Needs no GPU.

`evenstep simulate POLICY --help` lists the options of a policy. A yardstick is what others form
from all lengths of a data set; no loader trains on it.

\b
Examples:
  evenstep simulate even --lengths ultrachat --world-size 8 --json
  evenstep simulate workload-packing --lengths pretrain-128k --world-size 8
"""
_POLICY_HELP = """{summary}

All ranks run in this process, over one epoch. Fractions in the JSON object are fractions, not
percent.

\b
Examples:
  evenstep simulate {policy} --lengths ultrachat --world-size 8 --json
  evenstep simulate {policy} --lengths lengths.npy --world-size 64 {option}
"""


class _Policies(TyperGroup):
    """Names the known policies in the error about an unknown one."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in self.commands:
            raise ConfigurationError(
                f"unknown policy {cmd_name!r}; known are {', '.join(self.commands)}"
            )
        return self.commands[cmd_name]


def register(app: typer.Typer) -> None:
    """Adds the commands to `app`."""
    group = typer.Typer(
        cls=_Policies,
        help=_GROUP_HELP,
        subcommand_metavar="POLICY",
        no_args_is_help=True,
        rich_markup_mode=None,
    )
    for policy, named in COMPARED.items():
        option = "--batch-size 16" if "batch_size" in named.takes else "--max-tokens 32768"
        text = _POLICY_HELP.format(summary=named.summary, policy=policy, option=option)
        group.command(policy, help=text)(_command(policy))
    group.command("workload-packing")(pack_documents)
    app.add_typer(group, name="simulate")


def _command(policy: str) -> Callable[..., None]:
    """`_simulate` for one policy, with the options that the policy uses and no others."""
    takes = COMPARED[policy].takes
    unused = {"max_tokens", "batch_size", "sync"} - set(takes)

    def command(**options: Any) -> None:
        _simulate(policy, **options)

    parameters = inspect.signature(_simulate, eval_str=True).parameters.values()
    command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [p for p in parameters if p.name != "policy" and p.name not in unused]
    )
    return command


def _simulate(
    policy: str,
    *,
    lengths: LengthsName,
    world_size: WorldSize,
    max_tokens: Annotated[
        int | None,
        typer.Option(
            help="Token budget of a group.",
            show_default=f"what suits the distribution; for a file {_MAX_TOKENS:,}, or its longest",
        ),
    ] = None,
    batch_size: Annotated[int, typer.Option(help="Samples per rank and step.")] = 8,
    sync: Annotated[
        str | None,
        typer.Option(help="When ranks wait for each other: step or update.", show_default="step"),
    ] = None,
    buffer_size: BufferSize = "auto",
    update_tokens: Annotated[
        int | None,
        typer.Option(
            help="Real tokens of an update of the model, on all ranks.",
            show_default="--max-tokens of each rank for even on few ranks, which makes several "
            "smaller groups of them; else one group of each rank",
        ),
    ] = None,
    accumulate: Annotated[
        int | None,
        typer.Option(help="In place of --update-tokens: steps of an update.", show_default="1"),
    ] = None,
    samples: Annotated[
        int | None,
        typer.Option(
            help="Samples per rank, at most.",
            show_default=f"the whole file; {_SAMPLES_PER_RANK:,} from a distribution",
        ),
    ] = None,
    cost: CostName = "usual",
    seed: Annotated[int, typer.Option(help="Seed of lengths, shuffling and group order.")] = 0,
    json: Json = False,
) -> None:
    drawn = _drawn(lengths, samples, _SAMPLES_PER_RANK, world_size, seed)
    known = DISTRIBUTIONS.get(lengths)
    if max_tokens is None:
        max_tokens = known.max_tokens if known else _MAX_TOKENS
        if known is None:
            max_tokens = max(max_tokens, int(drawn.max()))
    chosen = COMPARED[policy](
        PolicyOptions(
            max_tokens=max_tokens,
            batch_size=batch_size,
            cost=parse_cost(cost),
            sync=sync,
        )
    )
    steps = resolve_accumulate(accumulate, update_tokens)
    if accumulate is None:
        asked = update_tokens or AUTO
        size = UpdateSize.of(chosen, asked, ranks=world_size, lengths=drawn[:_MEASURED])
        chosen, steps = size.policy, size.accumulate
    held = parse_buffer_size(buffer_size)
    options = {"accumulate": steps, "update_tokens": update_tokens or 0}
    result = _run(chosen, drawn, world_size, seed, buffer_size=held, **options)
    if json:
        setting = {
            "lengths": lengths,
            "seed": seed,
            "buffer_size": held,
            "accumulate": steps,
            "cost": cost,
            "options": dict(chosen.options()),
        }
        print_json({**result.as_dict(), **setting})
    else:
        figures = {**result.as_dict(), "accumulate": steps}
        print_figures(f"{policy} over {lengths}, {world_size} ranks", figures, _ROWS)
