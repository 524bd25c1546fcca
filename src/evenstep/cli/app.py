"""The typer application: the commands there are, and how their errors are reported."""

from __future__ import annotations

import importlib
import io
import sys
from collections.abc import Sequence
from importlib.metadata import entry_points
from typing import Annotated

import typer

from evenstep.errors import EvenstepError
from evenstep.version import __version__

COMMANDS = ("advise", "doctor", "index", "profile", "report")
"""Modules of this package with a function ``command``."""
GROUPS = ("service", "simulate")
"""Modules of this package with a function ``register(app: typer.Typer) -> None``."""
PLUGINS = "evenstep.commands"
"""Entry point group of further commands: each entry names a function like ``register``."""

_HELP = """Keeps every GPU of a training job equally busy.

`evenstep COMMAND --help` has the options of a command, and examples.

\b
Examples:
  evenstep advise lengths.npy --world-size 64
  evenstep simulate even --lengths ultrachat --world-size 8 --json
"""


def build() -> typer.Typer:
    """The application with all commands registered."""
    app = typer.Typer(
        name="evenstep",
        help=_HELP,
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,  # examples in help texts keep their lines
        pretty_exceptions_enable=False,
    )

    @app.callback()
    def options(
        version: Annotated[
            bool,
            typer.Option("--version", help="Print the version.", is_eager=True, callback=_version),
        ] = False,
    ) -> None:
        pass

    for name in COMMANDS:
        app.command(name)(importlib.import_module(f"evenstep.cli.{name}").command)
    for name in GROUPS:
        importlib.import_module(f"evenstep.cli.{name}").register(app)
    for plugin in sorted(entry_points(group=PLUGINS), key=lambda entry: entry.name):
        plugin.load()(app)
    return app


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"evenstep {__version__}")
        raise typer.Exit


def run(arguments: Sequence[str] | None = None) -> int:
    """Runs one command line and returns the exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # which may lack what tables are drawn with
            stream.reconfigure(errors="replace")
    try:
        build()(args=None if arguments is None else list(arguments), prog_name="evenstep")
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except (EvenstepError, ImportError, OSError, MemoryError) as error:
        # The user can fix these, without a traceback; any other exception is a bug and keeps it.
        text = str(error)
        if isinstance(error, MemoryError):
            text = f"not enough memory: {error or 'none is left'}; lower the numbers given"
        print("evenstep: " + " ".join(text.split()), file=sys.stderr)
        return 2
    return 0
