"""The command ``evenstep``. Each command or group of commands has a file:

```
advise     what each policy would gain on a data set, and settings to use
doctor     what would bite a job on this machine
simulate   policies over given lengths
profile    the cost of a model on the hardware at hand
index      what opening the files of a job finds out, before the job starts
report     what a run lost to padding, to waiting for ranks and for data, from its step log
service    a job of the service: run it, see its status and plans; measure its
           sources and size it (service_sizing); change it (service_changes); what was seen
           (service_seen)
```

`app` puts the commands together; demos arrive by entry points (group ``evenstep.commands``).
Shared: `shared_options` and `output`.

Standard output carries results, and with ``--json`` exactly one object; everything else goes to
standard error. Exit code 2 means that the arguments, or the files they name, must be changed.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from evenstep.errors import installing

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line and exits. `arguments` are those of the process by default."""
    try:
        import typer  # noqa: F401
    except ImportError:
        print(f"evenstep: the command line needs typer: {installing('cli')}", file=sys.stderr)
        raise SystemExit(2) from None
    from evenstep.cli.app import run

    raise SystemExit(run(arguments))
