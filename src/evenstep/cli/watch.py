"""``evenstep watch``: the step log of a running job, in the terminal."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from evenstep.cli.options import Json
from evenstep.cli.output import note, print_json

if TYPE_CHECKING:
    from rich.table import Table

    from evenstep.tools.report.run_record import RunRecord

_EVERY = 1.0  # seconds
_LAST = 30  # steps


def command(
    log: Annotated[Path, typer.Argument(metavar="LOG", help="The file of step_log=.")],
    seconds: Annotated[
        float | None, typer.Option(help="Stop after this many seconds.", show_default="at Ctrl-C")
    ] = None,
    json: Json = False,
) -> None:
    """Show where the time of a run goes, while it runs.

    The figures are those of `evenstep report`, for the whole log and for its last steps. --json
    prints the current ones once.

    \b
    Examples:
      evenstep watch run.jsonl
      evenstep watch run.jsonl --json
    """
    from rich.console import Console
    from rich.live import Live

    from evenstep.tools.report.run_record import read_run

    if json:
        run = read_run(log)
        print_json({"whole_log": run.as_dict(), "last_steps": run.last(_LAST).as_dict()})
        return
    end = None if seconds is None else time.monotonic() + seconds
    console = Console(markup=False, emoji=False)
    with Live(_table(read_run(log)), console=console, auto_refresh=False) as live:
        try:
            while end is None or time.monotonic() < end:
                time.sleep(_EVERY if end is None else max(min(_EVERY, end - time.monotonic()), 0.0))
                live.update(_table(read_run(log)), refresh=True)
        except KeyboardInterrupt:
            note("ended by Ctrl-C; the run continues")


def _table(run: RunRecord) -> Table:
    from rich.table import Table

    table = Table(title=run.name, title_justify="left")
    table.add_column("")
    for name in ("whole log", f"last {_LAST} steps"):
        table.add_column(name, justify="right")
    last = run.last(_LAST).figures
    for name, value in run.figures.items():
        table.add_row(name, value, last.get(name, ""))
    return table
