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
        int,
        typer.Option(
            min=64,
            help="Token budget of a batch on one rank, padding included. Documents longer than two "
            "thirds of it are left out.",
        ),
    ] = 1536,
    samples: Annotated[int, typer.Option(min=16, help="Documents to train on, at most.")] = 2000,
    seed: Annotated[
        int, typer.Option(min=0, help="Decides documents, their order and the model.")
    ] = 0,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Train a small GPT with fixed batches and with Even.

    Both train on the same documents, each once, with the same model, on the CPU; three times, with
    other weights and orders, so that held-out losses come with an interval. Even gets the
    budget, at most --max-tokens, with which both take about as many steps. Prints the figures
    measured and draws the compute time of every rank in every step. Takes a few minutes.

    \b
    Examples:
      evenstep demo
      evenstep demo --data FILE.parquet --column text --json
    """
    from evenstep_demos.text.budget import TrainingOptions
    from evenstep_demos.text.run import run_demo

    options = TrainingOptions(
        world_size=world_size, max_tokens=max_tokens, samples=samples, seed=seed
    )
    run_demo(options, data=data, column=column, out=out, as_json=json)
