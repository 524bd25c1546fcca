"""``evenstep report``: what a run lost to padding, to waiting for ranks and for data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from evenstep.cli.output import print_json, print_table
from evenstep.cli.shared_options import Json
from evenstep.errors import ConfigurationError


def command(
    log: Annotated[Path, typer.Argument(metavar="LOG", help="The file of step_log=.")],
    after: Annotated[
        Path | None, typer.Argument(metavar="AFTER", help="That of another run, to compare with.")
    ] = None,
    last: Annotated[
        int | None, typer.Option(min=1, help="Only the last updates.", show_default="all")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE.png", help="Draw the time of each step.")
    ] = None,
    json: Json = False,
) -> None:
    """Report where the time of a run went.

    It may still be running: `watch evenstep report run.jsonl --last 30` shows how it goes. The log
    has a line for each step. DataLoader(step_log="run.jsonl") writes it, and so does a
    client of the service.

    \b
    Examples:
      evenstep report run.jsonl
      evenstep report before.jsonl after.jsonl --json
      evenstep report run.jsonl --plot run.png
    """
    from evenstep.tools.report.run_record import read_run

    runs = [read_run(path) for path in (log, after) if path is not None]
    if last is not None:
        runs = [run.last(last) for run in runs]
    if not any(map(len, runs)):
        raise ConfigurationError(
            f"{log} has no update after the first one of a pass yet; wait until it has"
        )
    if plot is not None:
        from evenstep.tools.report.run_record import plot_losses

        plot_losses(runs, plot)
    if json:
        print_json({"runs": [run.as_dict() for run in runs]})
    else:
        for run in runs:
            print_table(run.name, run.figures)
