"""``evenstep demo-service``: many sources to four ranks, before and after balancing."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Adds the command to `app`."""
    app.command("demo-service")(command)


def command(
    sources: Annotated[
        int, typer.Option(min=1, help="Sources at most; the largest are taken.")
    ] = 120,
    steps: Annotated[int, typer.Option(min=1, help="Steps of each run.")] = 16,
    seed: Annotated[
        int, typer.Option(min=0, help="Decides samples, their order and the model.")
    ] = 0,
    out: Annotated[
        Path, typer.Option(help="Folder for sources, step_times.png and result.json.")
    ] = Path("out/demo-service"),
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Train four ranks from more than 100 sources through the service.

    Sources are folders of this interpreter's Python code. Starts Ray on this machine and four
    processes that train a small GPT on the CPU: two data-parallel groups, each of two
    context-parallel ranks. Both runs draw the same samples: the first deals them as they come, the
    second by their cost. Checks that each was delivered once, to the right ranks. Prints what was
    measured, and draws the processor seconds of every rank in every step.

    \b
    Examples:
      evenstep demo-service
      evenstep demo-service --steps 50 --json
    """
    from evenstep_demos.service.run import run_demo

    run_demo(sources=sources, steps=steps, seed=seed, out=out, as_json=json)
