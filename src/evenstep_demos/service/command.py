"""``evenstep demo-service``: many sources to four ranks, before and after balancing."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Adds the command to `app`."""
    app.command("demo-service")(command)


def command(
    data: Annotated[
        list[Path] | None,
        typer.Option(
            help="A Parquet file whose rows name their sources; may be given several times.",
            show_default="Python code of this interpreter, a source for each folder",
        ),
    ] = None,
    column: Annotated[str, typer.Option(help="Column of --data that holds the text.")] = "text",
    source_column: Annotated[
        str, typer.Option(help="Column of --data that names the source of each row.")
    ] = "source",
    sources: Annotated[
        int, typer.Option(min=1, help="Sources at most; the largest are taken.")
    ] = 120,
    vision: Annotated[
        bool,
        typer.Option(
            "--vision",
            help="Train a vision-language model, its encoder balanced apart from its backbone.",
        ),
    ] = False,
    live: Annotated[
        bool, typer.Option("--live", help="Let weights follow the losses that ranks report.")
    ] = False,
    steps: Annotated[
        int | None,
        typer.Option(min=1, help="Steps of each run.", show_default="16, or 8 with --vision"),
    ] = None,
    samples_per_step: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Samples of a step, on all ranks together.",
            show_default="24, or 32 with --vision",
        ),
    ] = None,
    max_length: Annotated[
        int | None,
        typer.Option(
            min=64,
            help="Tokens of text in a sample, which are bytes; longer documents are cut off.",
            show_default="4096, or 1024 with --vision",
        ),
    ] = None,
    loaders: Annotated[int, typer.Option(min=1, help="Source Loaders.")] = 2,
    seed: Annotated[
        int, typer.Option(min=0, help="Decides samples, their order and the model.")
    ] = 0,
    out: Annotated[Path, typer.Option(help="Folder for sources, pictures and result.json.")] = Path(
        "out/demo-service"
    ),
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Train four ranks from 100 sources through the service.

    Starts Ray on this machine and four processes that train a small GPT on the CPU: two
    data-parallel groups, each of two context-parallel ranks. Every run draws the same samples.
    Checks that each was delivered once, to the right ranks. Prints what was measured, and draws the
    processor seconds of every rank in every step.

    \b
    Examples:
      evenstep demo-service
      evenstep demo-service --data FILE.parquet --source-column source --json
      evenstep demo-service --vision
    """
    from evenstep_demos.service.options import ServiceDemoOptions
    from evenstep_demos.service.run import run_demo

    options = ServiceDemoOptions(
        data=tuple(data or ()),
        column=column,
        source_column=source_column,
        sources=sources,
        vision=vision,
        live=live,
        steps=steps or (8 if vision else 16),
        samples_per_step=samples_per_step or (32 if vision else 24),
        max_length=max_length or (1024 if vision else 4096),
        loaders=loaders,
        seed=seed,
        out=out,
    )
    run_demo(options, as_json=json)
