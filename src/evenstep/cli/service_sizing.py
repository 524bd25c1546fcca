"""``evenstep service profile`` and ``advise``: the cost of sources, and the loaders they need."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evenstep.cli.output import note, print_json
from evenstep.cli.user_objects import load_job
from evenstep.files import read_json, write_whole
from evenstep.strategy.loaders import LoaderLayout

if TYPE_CHECKING:
    from evenstep.strategy.loaders import SourceProfile

_MEBI = 1 << 20

JobName = Annotated[
    str, typer.Argument(metavar="JOB", help="FILE.py with `job = es.Job(...)`, or module:name.")
]


def profile(
    job: JobName,
    samples: Annotated[int, typer.Option(min=1, help="Samples of each source, at most.")] = 64,
    seconds: Annotated[float, typer.Option(help="Seconds for each source, about.")] = 5.0,
    every: Annotated[
        bool, typer.Option("--all", help="Also measure sources that have not changed.")
    ] = False,
) -> None:
    """Measure the time and memory that the sources of a job cost, as one JSON object.

    It is also written to JOB.profile.json.

    If that file exists, only sources whose data or transform has changed since are measured.
    Measure on the machine where loaders will run, while it does nothing else.

    \b
    Examples:
      evenstep service profile job.py
      evenstep service profile job.py --samples 256 --seconds 20
    """
    from evenstep.service.sizing.job_profile import JobProfile
    from evenstep.service.sizing.job_profile import profile as measure

    made, path = load_job(job), _profile_of(job)
    known = None if every or not path.exists() else JobProfile.read(path)
    note(f"measuring {len(made.sources):,} sources")
    measured: list[str] = []

    def tell(name: str, found: SourceProfile | None) -> None:
        if found is None:
            return
        measured.append(name)
        note(
            f"{name}: {1000 * found.prepare_median:.3g} ms to transform a sample, "
            f"{found.file_bytes / _MEBI:,.1f} MiB open"
        )

    found = measure(made, samples=samples, seconds=seconds, known=known, progress=tell)
    found.write(path)
    note(f"measured {len(measured):,} of {len(made.sources):,} sources; wrote {path}")
    print_json({**found.as_dict(), "measured": measured})


def advise(
    job: JobName,
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
    layout: Annotated[
        Path | None, typer.Option(help="File to write the layout to, for `run --loaders FILE`.")
    ] = None,
) -> None:
    """Plan the loaders and workers that a job needs, and the sources of each, as one JSON object.

    Uses the measurements of `evenstep service profile`, and refuses those of other data. Without
    measurements it measures a few samples of each source first. It also names what would starve.

    \b
    Examples:
      evenstep service advise job.py --step-seconds 0.5 --memory 4096
      evenstep service advise job.py --layout layout.json
    """
    from evenstep.service.sizing.job_profile import JobProfile, check_profile
    from evenstep.service.sizing.loader_planning import plan_loaders

    made = load_job(job)
    path, known = _profile_of(job), None
    if not path.exists():
        note(f"no profile: measuring a few samples of {len(made.sources):,} sources")
    else:
        known = JobProfile.read(path)
        check_profile(made, known)
    found = plan_loaders(
        made,
        known,
        step_seconds=step_seconds,
        memory=None if memory is None else memory * _MEBI,
        workers=workers,
    )
    if layout is not None:
        import json as json_module

        write_whole(layout, json_module.dumps(found.as_dict(), indent=1) + "\n")
        note(f"wrote {layout}; start the job with `evenstep service run {job} --loaders {layout}`")
    print_json(found.as_dict())
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


def _profile_of(job: str) -> Path:
    home = job.split(":")[0]
    return (
        Path(home).with_suffix(".profile.json")
        if home.endswith(".py")
        else Path(f"{home}.profile.json")
    )
