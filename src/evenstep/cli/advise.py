"""``evenstep advise``: what the policies would gain on a data set, and which settings to take."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from evenstep.cli.output import print_json, progress_bar
from evenstep.cli.shared_options import (
    COST_HELP,
    BufferSize,
    Json,
    WorldSize,
    parse_buffer_size,
    parse_cost,
)
from evenstep.errors import ConfigurationError
from evenstep.tools.advise import advise, draw_length_sample, set_up
from evenstep.tools.advise.length_sources import SAMPLE_SIZE
from evenstep.tools.advise.model_on_gpu import GPUS, NO_FACTS, ModelFacts
from evenstep.tools.report.advice_text import advice_text
from evenstep.tools.simulate import DISTRIBUTIONS
from evenstep.tools.simulate.yardsticks import COMPARED


def command(
    data: Annotated[
        str,
        typer.Argument(
            metavar="DATA",
            help="FILE.npy of lengths, FILE.parquet[:COLUMN], FILE.jsonl[:COLUMN], the folder or "
            "hub name of a Hugging Face data set with [:COLUMN], or one of "
            f"{', '.join(DISTRIBUTIONS)}. A column holds lengths, token ids or text; by default it "
            "is text with --tokenizer, else input_ids, else the only one.",
        ),
    ],
    tokenizer: Annotated[
        str | None,
        typer.Option(help="Tokenizer for text: a tokenizer.json, a folder, or a name on the hub."),
    ] = None,
    world_size: WorldSize = 8,
    max_tokens: Annotated[
        int | None,
        typer.Option(
            help="Token budget of a group.",
            show_default="4 x the mean length, at least the longest sample",
        ),
    ] = None,
    max_length: Annotated[
        int | None,
        typer.Option(help="Length to which longer samples are cut."),
    ] = None,
    buffer_size: BufferSize = "auto",
    batch_size: Annotated[
        int | None,
        typer.Option(
            help="Samples of your fixed batches, to compare with.",
            show_default="as many as fit --max-tokens whatever their lengths",
        ),
    ] = None,
    update_tokens: Annotated[
        int | None,
        typer.Option(
            help="Real tokens of an update of your model, on all ranks.",
            show_default="those of --batch-size on each rank; or a full group of each",
        ),
    ] = None,
    accumulate: Annotated[int, typer.Option(help="Your batches of an update, of each rank.")] = 1,
    model: Annotated[str | None, typer.Option(help="Its config.json, folder or name.")] = None,
    gpu: Annotated[str | None, typer.Option(help=f"GPU of a rank: {', '.join(GPUS)}.")] = None,
    packed: Annotated[bool | None, typer.Option(help="The model takes varlen batches.")] = None,
    cost: Annotated[str | None, typer.Option(help=COST_HELP, show_default="of --model")] = None,
    sketch: Annotated[
        int | None, typer.Option(help="Samples to draw.", show_default=f"{SAMPLE_SIZE:,}")
    ] = None,
    all_samples: Annotated[bool, typer.Option("--all", help="Take all samples.")] = False,
    split: Annotated[str, typer.Option(help="Split of a Hugging Face data set.")] = "train",
    subset: Annotated[
        str | None, typer.Option(help="Subset of a data set on the Hugging Face hub.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the draw.")] = 0,
    json: Json = False,
) -> None:
    """Predict what each policy would gain, and recommend settings.

    Draws some thousand samples of a data set and runs the policies over their lengths, without a
    GPU. Speed-ups are predictions under the cost model; the output lists what they leave out.
    Fractions in the JSON object are fractions, not percent.

    \b
    Examples:
      evenstep advise lengths.npy --world-size 64
      evenstep advise chat.parquet:text --tokenizer tokenizer.json
      evenstep advise lengths.npy --batch-size 8 --accumulate 4 --world-size 8
      evenstep advise lengths.npy --model config.json --gpu h100 --world-size 8
      evenstep advise ultrachat --max-tokens 12288 --json
    """
    if all_samples and sketch is not None:
        raise ConfigurationError(f"--all and --sketch {sketch} exclude each other; give one")
    if gpu is not None and model is None:
        raise ConfigurationError(f"--gpu {gpu} says what fits of a model: give --model, too")
    facts = NO_FACTS if model is None else ModelFacts.of(model, gpu, world_size)
    if cost is not None:  # is not that of the model
        facts = replace(facts, rate=float(cost.startswith("calibration:")))
    cost_model = parse_cost(cost or (f"model:{model}" if model else "usual"))
    size = None if all_samples else SAMPLE_SIZE if sketch is None else sketch
    with progress_bar("measuring samples") as progress:
        drawn = draw_length_sample(
            data,
            tokenizer=tokenizer,
            size=size,
            seed=seed,
            split=split,
            subset=subset,
            progress=progress,
        )
    if max_length is not None:
        drawn = drawn.cut_to(max_length)
    setup = set_up(
        drawn,
        world_size=world_size,
        max_tokens=max_tokens,
        buffer_size=parse_buffer_size(buffer_size),
        batch_size=batch_size,
        accumulate=accumulate,
        update_tokens=update_tokens,
        fits=facts.fits,
    )
    with progress_bar("predicting") as progress:
        advice = advise(
            drawn,
            COMPARED,
            setup=setup,
            cost=cost_model,
            packed=facts.packs if packed is None else packed,
            facts=facts,
            seed=seed,
            progress=progress,
        )
    if json:
        print_json(advice.as_dict())
    else:
        print(advice_text(advice))
