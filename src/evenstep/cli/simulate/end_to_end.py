"""``evenstep simulate end-to-end``: the time of a training step, by a model of GPUs and links."""

from __future__ import annotations

from typing import Annotated

import typer

from evenstep.cli.options import MOST_RANKS, Json, LengthsName, Seed
from evenstep.cli.output import print_json, progress_bar
from evenstep.errors import ConfigurationError
from evenstep.plan.argument_checks import check_at_least
from evenstep.plan.lengths import MAX_LENGTH
from evenstep.tools.report.table import text_table
from evenstep.tools.simulate import DISTRIBUTIONS, load_lengths
from evenstep.tools.simulate.cluster_assumptions import MODELS, ClusterAssumptions
from evenstep.tools.simulate.end_to_end import run_end_to_end
from evenstep.tools.simulate.step_time_model import StepModel


def command(
    *,
    lengths: LengthsName,
    model: Annotated[
        str, typer.Option(help=f"Model of WLB-LLM's Table 1: {', '.join(MODELS)}.")
    ] = "7B",
    context: Annotated[int, typer.Option(help="Context window, in tokens.", max=MAX_LENGTH)] = (
        131_072
    ),
    tp: Annotated[int, typer.Option(help="Tensor-parallel ranks.", max=MOST_RANKS)] = 8,
    cp: Annotated[int, typer.Option(help="Context-parallel ranks.", max=MOST_RANKS)] = 2,
    pp: Annotated[int, typer.Option(help="Stages of the pipeline.", max=1024)] = 4,
    dp: Annotated[int, typer.Option(help="Data-parallel ranks.", max=MOST_RANKS)] = 1,
    steps: Annotated[int, typer.Option(help="Steps, each of PP x DP context windows.")] = 40,
    exposed: Annotated[
        bool,
        typer.Option(
            "--exposed",
            help="Exchange keys and values before attention. By default both overlap, as plans "
            "assume.",
        ),
    ] = False,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """The time of steps: dynamic groups, WLB-LLM.

    Predicts steps on H100 GPUs; nothing runs. Dynamic groups divide all CP x DP ranks. The defaults
    are 7B-128K of WLB-LLM's Table 1. Speedups compare time per cost of the documents trained on.

    \b
    Examples:
      evenstep simulate end-to-end --lengths pretrain-128k --json
      evenstep simulate end-to-end --lengths sft-256k --context 262144 --tp 4 --cp 8 --dp 2
    """
    check_at_least(1, steps=steps)
    check_at_least(0, seed=seed)
    if model not in MODELS:
        raise ConfigurationError(f"model={model!r} must be one of {', '.join(MODELS)}")
    setting = ClusterAssumptions(
        model=MODELS[model], context=context, tensor=tp, context_ranks=cp, stages=pp, data=dp
    )
    tokens = (steps + 1) * setting.micro_batches * context
    if lengths in DISTRIBUTIONS:
        drawn = load_lengths(lengths, samples=int(tokens / DISTRIBUTIONS[lengths].mean), seed=seed)
    else:
        drawn = load_lengths(lengths)
        drawn = load_lengths(
            lengths, samples=max(round(tokens / float(drawn.mean())), 1), seed=seed
        )
    step_model = StepModel.of(setting)
    with progress_bar(f"{steps:,} steps of {setting.name}") as progress:
        found = run_end_to_end(step_model, drawn, hidden=not exposed, progress=progress)
    figures = {
        "policy": "end-to-end",
        "lengths": lengths,
        "job": setting.name,
        "gpus": setting.gpus,
        "ranks": cp * dp,
        "documents": len(drawn),
        "exposed": exposed,
        "seed": seed,
        **found,
    }
    if json:
        print_json(figures)
        return
    rows = [
        ("original packing, per sequence", 1.0),
        ("WLB-LLM", found["wlb_over_plain"]),
        ("steady packing, hybrid sharding", found["steady_over_wlb"] * found["wlb_over_plain"]),
        ("dynamic groups", found["dynamic_over_plain"]),
    ]
    title = f"{setting.name} on {setting.gpus:,} GPUs, {lengths}: predicted"
    table = text_table(["", "speedup"], [[name, f"{each:.3f}"] for name, each in rows], title=title)
    print(f"{table}\n\ndynamic groups over WLB-LLM: {found['dynamic_over_wlb']:.3f}")
