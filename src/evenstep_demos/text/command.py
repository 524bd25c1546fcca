"""``evenstep demo``: trains a small GPT with fixed batches and with `evenstep.Even`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Adds the command to `app`."""
    app.command("demo")(command)


def command(
    data: Annotated[
        Path | None,
        typer.Option(
            help="A Parquet file with one document a row.",
            show_default="top-level blocks of the standard library's source files",
        ),
    ] = None,
    column: Annotated[str, typer.Option(help="Column of --data that holds the text.")] = "text",
    out: Annotated[Path, typer.Option(help="Folder for step_times.png and result.json.")] = Path(
        "out/demo"
    ),
    world_size: Annotated[int, typer.Option(min=2, help="Data-parallel processes.")] = 2,
    max_tokens: Annotated[
        int, typer.Option(min=64, help="Token budget of a batch on one rank, padding included.")
    ] = 1536,
    max_length: Annotated[
        int | None,
        typer.Option(
            min=64,
            help="Documents of more tokens are left out.",
            show_default="two thirds of --max-tokens",
        ),
    ] = None,
    seconds: Annotated[
        float, typer.Option(min=1, help="About how long all training runs may take together.")
    ] = 100.0,
    samples: Annotated[
        int | None,
        typer.Option(min=2, help="Documents to train on.", show_default="what fits --seconds"),
    ] = None,
    seed: Annotated[
        int, typer.Option(min=0, help="Decides documents, their order and the model.")
    ] = 0,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Train a small GPT with fixed batches and with Even.

    Both train on the same documents, each once, with the same model, on the CPU; three times, with
    other weights and orders, so that held-out losses come with an interval. Even gets the budget,
    at most --max-tokens, with which both take about as many steps. Prints the figures measured and
    draws the compute time of every rank in every step.

    \b
    Examples:
      evenstep demo
      evenstep demo --data FILE.parquet --column text --json
    """
    from evenstep_demos.text.budget import TrainingOptions
    from evenstep_demos.text.run import run_demo

    run_demo(
        TrainingOptions(
            world_size=world_size,
            max_tokens=max_tokens,
            seed=seed,
            seconds=seconds,
            samples=samples,
        ),
        data=data,
        column=column,
        max_length=max_length,
        out=out,
        as_json=json,
    )
