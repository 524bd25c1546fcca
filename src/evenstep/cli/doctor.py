"""``evenstep doctor``: what would bite a job on this machine, and the remedy."""

from __future__ import annotations

import shutil
import textwrap

import typer

from evenstep.cli.output import note, print_json
from evenstep.cli.shared_options import Json
from evenstep.tools.doctor import Examination, Finding, examine

_LEVEL, _CHECK = 9, 15  # columns
_WIDEST = 100


def command(json: Json = False) -> None:
    """Check this machine and environment for what would bite a job.

    Looks at open files, the attention of GPUs, and the releases of Python, torch and trainers; then
    runs a job of two small ranks. Run it as your job runs: on its host, in its container, with
    its environment. The exit code is 1 if something breaks every job, and 0 with warnings.

    \b
    Examples:
      evenstep doctor
      srun --ntasks-per-node=1 evenstep doctor
      evenstep doctor --json
    """
    found = examine(tell=note)
    if json:
        print_json(found.as_dict())
    else:
        print(_text(found))
    if found.breaks:
        raise typer.Exit(1)


def _text(found: Examination) -> str:
    width = min(shutil.get_terminal_size().columns, _WIDEST)
    levels = [each.level for each in found.findings]
    broken, warned = levels.count("breaks"), levels.count("warning")
    return "\n".join(
        [
            f"{found.host}, {found.system}",
            "",
            *(_line(each, width) for each in found.findings),
            "",
            f"broken: {broken}, warnings: {warned}"
            if broken or warned
            else "nothing was found that would bite a job",
        ]
    )


def _line(each: Finding, width: int) -> str:
    level = each.level.upper() if each.breaks else each.level
    begin = f"{level:<{_LEVEL}}{each.check:<{_CHECK}}"
    indent = " " * (_LEVEL + _CHECK)
    texts = [(each.found, begin, indent)]
    if each.remedy:
        texts.append((each.remedy, f"{indent}-> ", f"{indent}   "))
    return "\n".join(
        textwrap.fill(
            text, width, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False
        )
        for text, first, rest in texts
    )
