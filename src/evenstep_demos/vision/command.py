"""``evenstep demo-vision``: trains a small Qwen2-VL with fixed batches and with `evenstep.Even`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Adds the command to `app`."""
    app.command("demo-vision")(command)


def command(
    out: Annotated[Path, typer.Option(help="Folder for step_times.png and result.json.")] = Path(
        "out/demo-vision"
    ),
    world_size: Annotated[int, typer.Option(min=2, help="Data-parallel processes.")] = 2,
    max_tokens: Annotated[
        int, typer.Option(min=64, help="Token budget of a batch on one rank, padding included.")
    ] = 1536,
    samples: Annotated[int, typer.Option(min=16, help="Rows to train on.")] = 800,
    seed: Annotated[int, typer.Option(min=0, help="Decides rows, their order and the model.")] = 0,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Train a small Qwen2-VL on photographs, with fixed batches and with Even.

    Both are given the same rows of images and messages, and the same collate function, which makes
    tokens and pixels of them; on the CPU, three times, with other weights and orders, so that
    held-out losses come with an interval. Even gets the budget, at most --max-tokens, with which
    both take about as many steps. Prints the figures measured and draws the compute time of every
    rank in every step. Takes a few minutes.

    \b
    Examples:
      evenstep demo-vision
      evenstep demo-vision --samples 1600 --json
    """
    from evenstep_demos.text.budget import TrainingOptions
    from evenstep_demos.vision.run import run_vision_demo

    options = TrainingOptions(
        world_size=world_size, max_tokens=max_tokens, samples=samples, seed=seed
    )
    run_vision_demo(options, out=out, as_json=json)
