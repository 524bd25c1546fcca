"""``evenstep simulate``: what a policy makes of given lengths. Each policy is a command."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from evenstep.cli.cost_option import parse_cost
from evenstep.cli.options import (
    BufferSize,
    CostName,
    Json,
    LengthsName,
    WorldSize,
    parse_buffer_size,
)
from evenstep.cli.output import note, print_figures, print_json, progress_bar
from evenstep.cli.simulate import packing, rebalance
from evenstep.errors import ConfigurationError
from evenstep.plan.argument_checks import check_at_least
from evenstep.plan.policies.by_name import PolicyOptions
from evenstep.plan.update_size import AUTO, UpdateSize, resolve_accumulate
from evenstep.tools.simulate import (
    DISTRIBUTIONS,
    deal,
    load_lengths,
    load_samples,
    simulate,
)
from evenstep.tools.simulate.yardsticks import COMPARED, YARDSTICKS

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
    "message per rank and round, bytes": ("message_bytes_per_round", ",.0f"),
    "imbalance of the language model": ("text_imbalance", ".4f"),
    "imbalance of the vision tower": ("vision_imbalance", ".4f"),
    "patches": ("patches", ","),
    "images": ("images", ","),
    "steps with images on some ranks only": ("steps_mixed", ","),
}
_GROUP_HELP = """Run a policy over lengths, and report what it gains. Needs no GPU.

`evenstep simulate POLICY --help` lists the options of a policy. A yardstick is what others form
from all lengths of a data set; no loader trains on it.

\b
Examples:
  evenstep simulate even --lengths ultrachat --world-size 8 --json
  evenstep simulate workload-packing --lengths pretrain-128k --world-size 8
  evenstep simulate rebalance --ranks 64 --max-tokens 32768
"""
_POLICY_HELP = """{summary}

All ranks run in this process, over one epoch. Fractions in the JSON object are fractions, not
percent.

\b
Examples:
  evenstep simulate {policy} --lengths ultrachat --world-size 8 --json
  evenstep simulate {policy} --lengths lengths.npy --world-size 64 {option}
"""
_SUMMARIES = {
    "even": "Groups of equal cost on all ranks, padded.",
    "even-packed": "Groups of equal cost on all ranks, not padded.",
    "token-budget": "Groups of like length in a token budget (ODB).",
    "pool-sort": "Fixed-size batches of like length on all ranks.",
    "fixed-batch": "Fixed-size batches in the sampler's order.",
    "sequence-packing": "Groups packed best-fit decreasing, not padded.",
    "sorted": "Yardstick: fixed-size batches, by length.",
    "length-grouped": "Yardstick: group_by_length of Hugging Face.",
    "max-tokens": "Yardstick: full batches, shortest first (GMT).",
    "bucketed-max-tokens": "Yardstick: full batches of like length (BMT).",
}


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
        text = _POLICY_HELP.format(summary=_SUMMARIES[policy], policy=policy, option=option)
        group.command(policy, help=text)(_command(policy))
    group.command("workload-packing")(packing.command)
    group.command("rebalance")(rebalance.command)
    app.add_typer(group, name="simulate")


def _command(policy: str) -> Callable[..., None]:
    """`_simulate` for one policy, with the options that the policy uses and no others."""
    takes = COMPARED[policy].takes
    unused = {"max_tokens", "target_tokens", "batch_size", "spread", "sync"} - set(takes)
    if policy in YARDSTICKS:
        # All ranks have equally many groups: none is exhausted early.
        unused |= {"exhausted", "vision"}

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
    target_tokens: Annotated[
        int | None,
        typer.Option(
            help="Tokens that a group should hold, if fewer than --max-tokens.",
            show_default="--max-tokens",
        ),
    ] = None,
    batch_size: Annotated[int, typer.Option(help="Samples per rank and step.")] = 8,
    spread: Annotated[
        bool | None,
        typer.Option(
            help="Let short, middle and long samples meet in a step, or in an update.",
            show_default="yes, but not for pool-sort",
        ),
    ] = None,
    sync: Annotated[
        str | None,
        typer.Option(help="When ranks wait for each other: step or update.", show_default="step"),
    ] = None,
    buffer_size: BufferSize = "auto",
    exhausted: Annotated[
        str, typer.Option(help="What happens when a rank has no samples left: pad or stop.")
    ] = "pad",
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
    vision: Annotated[
        str | None,
        typer.Option(
            help="Images of the samples: FILE.parquet:COLUMN, lists of the patches of each; "
            "FILE.parquet:WIDTH,HEIGHT, lists of their pixels; or a distribution of tokens per "
            "image, such as coyo-image, which are added to the lengths. With a --cost of two "
            "parts, transformer:LANGUAGE+VISION, both are balanced.",
            show_default="none",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of lengths, shuffling and group order.")] = 0,
    json: Json = False,
) -> None:
    check_at_least(1, world_size=world_size, samples=samples)
    check_at_least(0, seed=seed)
    known = DISTRIBUTIONS.get(lengths)
    if samples is None and known:
        samples = _SAMPLES_PER_RANK
    wanted = None if samples is None else samples * world_size
    if vision is None:
        rows = load_lengths(lengths, samples=wanted, seed=seed)[None]
    else:
        rows = load_samples(lengths, vision, samples=wanted, seed=seed)
    drawn = rows[0]
    if wanted is not None and len(drawn) < wanted:
        note(f"{lengths} holds {len(drawn):,} samples, fewer than {samples:,} for each rank")
    if max_tokens is None:
        max_tokens = known.max_tokens if known else _MAX_TOKENS
        if known is None or vision is not None:
            max_tokens = max(max_tokens, int(drawn.max()))
    chosen = COMPARED[policy](
        PolicyOptions(
            max_tokens=max_tokens,
            batch_size=batch_size,
            cost=parse_cost(cost),
            target_tokens=target_tokens,
            spread=spread,
            sync=sync,
        )
    )
    steps = resolve_accumulate(accumulate, update_tokens)
    if accumulate is None:
        asked = update_tokens or AUTO
        size = UpdateSize.of(chosen, asked, ranks=world_size, lengths=drawn[:_MEASURED])
        chosen, steps = size.policy, size.accumulate
    held = parse_buffer_size(buffer_size)
    shards = deal(len(drawn), world_size, seed)
    with progress_bar(f"{policy} on {world_size} ranks") as progress:
        result = simulate(
            chosen,
            [rows[:, shard] for shard in shards],
            buffer_size=held,
            exhausted=exhausted,
            accumulate=steps,
            seed=seed,
            identities=shards,
            progress=progress,
        )
    if json:
        setting = {
            "lengths": lengths,
            "seed": seed,
            "buffer_size": held,
            "exhausted": exhausted,
            "accumulate": steps,
            "cost": cost,
            **({} if vision is None else {"vision": vision}),
            "options": dict(chosen.options()),
        }
        print_json({**result.as_dict(), **setting})
    else:
        figures = {**result.as_dict(), "accumulate": steps}
        print_figures(f"{policy} over {lengths}, {world_size} ranks", figures, _ROWS)
