"""The command ``evenstep``. One command per file, each with a function ``register(app)``.

Standard output carries results, and with ``--json`` exactly one object; everything else goes to
standard error. Exit code 2 means that the arguments, or what they name, must be changed.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line and exits. `arguments` are those of the process by default."""
    try:
        import typer  # noqa: F401
    except ImportError:
        print(
            "evenstep: the command line needs typer: pip install 'evenstep[cli]'", file=sys.stderr
        )
        raise SystemExit(2) from None
    from evenstep.cli.app import run

    raise SystemExit(run(arguments))
