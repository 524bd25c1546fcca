"""``evenstep service advise``: the cost of sources, and the loaders they need."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from evenstep.cli.output import note, print_json
from evenstep.cli.shared_options import load_job
from evenstep.files import read_json, write_whole
from evenstep.strategy.loaders import LoaderLayout

_MEBI = 1 << 20


def advise(
    job: Annotated[
        str, typer.Argument(metavar="JOB", help="FILE.py with `job = es.Job(...)`, or module:name.")
    ],
    step_seconds: Annotated[
        float | None,
        typer.Option(
            help="Seconds of the trainer's step, to keep up with.",
            show_default="as fast as the cores allow",
        ),
    ] = None,
    memory: Annotated[
        int | None,
        typer.Option(
            help="MiB of a loader with its workers.", show_default="half of this machine's"
        ),
    ] = None,
    workers: Annotated[int, typer.Option(min=0, help="Workers of a loader, at most.")] = 8,
    samples: Annotated[
        int, typer.Option(min=1, help="Samples of each source to measure, at most.")
    ] = 64,
    seconds: Annotated[float, typer.Option(help="Seconds for each source, about.")] = 5.0,
    layout: Annotated[
        Path | None, typer.Option(help="File to write the layout to, for `run --loaders FILE`.")
    ] = None,
) -> None:
    """Measure the sources of a job, and plan the loaders and workers that it needs.

    Prints one JSON object: the loaders, the sources of each, and what each source costs in time and
    memory. It also names what would starve. Measure on the machine where loaders will run, while it
    does nothing else.

    \b
    Examples:
      evenstep service advise job.py --step-seconds 0.5 --memory 4096
      evenstep service advise job.py --layout layout.json
    """
    from evenstep.service.sizing.job_profile import profile
    from evenstep.service.sizing.loader_planning import plan_loaders

    made = load_job(job)
    note(f"measuring {len(made.sources):,} sources")
    known = profile(made, samples=samples, seconds=seconds)
    found = plan_loaders(
        made,
        known,
        step_seconds=step_seconds,
        memory=None if memory is None else memory * _MEBI,
        workers=workers,
    )
    if layout is not None:
        write_whole(layout, json.dumps(found.as_dict(), indent=1) + "\n")
        note(f"wrote {layout}; start the job with `evenstep service run {job} --loaders {layout}`")
    costs = {name: asdict(each) for name, each in known.sources.items()}
    print_json({**found.as_dict(), "costs": costs})
    for shortage in found.shortages:
        note(
            f"{shortage.what} would starve: needs {shortage.needs}, has {shortage.has}; "
            f"{shortage.remedy}"
        )


def loaders_of(text: str) -> Any:
    """The value of ``--loaders``: a number, auto, or a layout read from its file."""
    if text.isdecimal() or text == "auto":
        return text if text == "auto" else int(text)
    again = "give a number, auto, or a file that `evenstep service advise --layout` wrote"
    return LoaderLayout.from_dict(read_json(text, again=again))
