"""``evenstep service profile`` and ``advise``: the cost of sources, and the loaders they need."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evenstep.cli.options import Json
from evenstep.cli.output import note, print_json, print_table
from evenstep.cli.user_objects import load_job
from evenstep.files import read_json, write_whole
from evenstep.strategy.loaders import LoaderLayout

if TYPE_CHECKING:
    from evenstep.service.job.job import Job
    from evenstep.service.sizing.job_profile import JobProfile
    from evenstep.strategy.loaders import SourceProfile

_SHOWN = 12  # sources or loaders in a table
_MEBI = 1 << 20

JobName = Annotated[
    str, typer.Argument(metavar="JOB", help="FILE.py with `job = es.Job(...)`, or module:name.")
]
ProfileFile = Annotated[
    Path | None,
    typer.Option(
        "--profile", help="File of the measurements.", show_default="JOB.profile.json if it exists"
    ),
]


def profile(
    job: JobName,
    profile: Annotated[
        Path | None,
        typer.Option(help="File to write to.", show_default="JOB.profile.json"),
    ] = None,
    samples: Annotated[int, typer.Option(min=1, help="Samples of each source, at most.")] = 64,
    seconds: Annotated[float, typer.Option(help="Seconds for each source, about.")] = 5.0,
    every: Annotated[
        bool, typer.Option("--all", help="Also measure sources that have not changed.")
    ] = False,
    json: Json = False,
) -> None:
    """Measure the time and memory that the sources of a job cost.

    If the file exists, only sources whose data or transform has changed since are measured.
    Measure on the machine where loaders will run, while it does nothing else.

    \b
    Examples:
      evenstep service profile job.py
      evenstep service profile job.py --samples 256 --seconds 20 --json
    """
    from evenstep.service.sizing.job_profile import JobProfile
    from evenstep.service.sizing.profiling import profile as measure

    made, path = load_job(job), profile or _profile_of(job)
    known = None if every or not path.exists() else JobProfile.read(path)
    note(f"measuring {len(made.sources):,} sources")
    measured: list[str] = []

    def tell(name: str, found: SourceProfile | None) -> None:
        if found is None:
            return
        measured.append(name)
        note(
            f"{name}: {_milliseconds(found.prepare_median)} to transform a sample, "
            f"{_mebibytes(found.file_bytes)} open"
        )

    found = measure(made, samples=samples, seconds=seconds, known=known, progress=tell)
    found.write(path)
    note(f"measured {len(measured):,} of {len(made.sources):,} sources; wrote {path}")
    if json:
        print_json({**found.as_dict(), "measured": measured})
    else:
        _print_profile(found)


def advise(
    job: JobName,
    profile: ProfileFile = None,
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
    cores: Annotated[
        float | None,
        typer.Option(help="Cores of all loaders.", show_default="those of this machine"),
    ] = None,
    workers: Annotated[int, typer.Option(min=0, help="Workers of a loader, at most.")] = 8,
    layout: Annotated[
        Path | None, typer.Option(help="File to write the layout to, for `run --loaders FILE`.")
    ] = None,
    json: Json = False,
) -> None:
    """Plan the loaders and workers that a job needs, and the sources of each.

    Uses the measurements of `evenstep service profile`, and refuses those of other data. Without
    measurements it measures a few samples of each source first. It also names what would starve.

    \b
    Examples:
      evenstep service advise job.py --step-seconds 0.5 --memory 4096
      evenstep service advise job.py --layout layout.json --json
    """
    from evenstep.service.sizing.job_profile import JobProfile
    from evenstep.service.sizing.loader_planning import plan_loaders
    from evenstep.service.sizing.profiling import check_profile

    made = load_job(job)
    path = profile or (_profile_of(job) if _profile_of(job).exists() else None)
    known = None
    if path is None:
        note(f"no profile: measuring a few samples of {len(made.sources):,} sources")
    else:
        known = JobProfile.read(path)
        check_profile(made, known)
    found = plan_loaders(
        made,
        known,
        step_seconds=step_seconds,
        memory=None if memory is None else memory * _MEBI,
        cores=cores,
        workers=workers,
    )
    if layout is not None:
        import json as json_module

        write_whole(layout, json_module.dumps(found.as_dict(), indent=1) + "\n")
        note(f"wrote {layout}; start the job with `evenstep service run {job} --loaders {layout}`")
    if json:
        print_json(found.as_dict())
    else:
        _print_layout(found, made)
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


def _print_profile(profile: JobProfile) -> None:
    rows = {"a process without sources": _mebibytes(profile.process_bytes)}
    slowest = sorted(profile.sources.values(), key=lambda each: -each.prepare_seconds)
    for each in slowest[:_SHOWN]:
        rows[each.source] = (
            f"transform {_milliseconds(each.prepare_median)} "
            f"({_milliseconds(each.prepare_low)} to {_milliseconds(each.prepare_high)}), "
            f"read {_milliseconds(each.read_seconds)}, {_mebibytes(each.file_bytes)} open, "
            f"{each.sample_bytes:,} B a sample"
        )
    if len(slowest) > _SHOWN:
        rows["others"] = f"{len(slowest) - _SHOWN:,} sources that are quicker, see --json"
    print_table("sources by time of their transforms", rows)


def _print_layout(layout: LoaderLayout, job: Job) -> None:
    rows = {
        "loaders": f"{len(layout.loaders):,}, with {layout.workers:,} workers",
        "sources": f"{len(job.sources):,}",
        "memory": _mebibytes(layout.memory),
        "cores in use": f"{layout.cores:.1f}",
        "a step is prepared in": f"{layout.seconds:.3g} s, planned for {layout.step_seconds:.3g} s",
    }
    for number, loader in enumerate(layout.loaders[:_SHOWN]):
        names = ", ".join(share.source for share in loader.shares[:3])
        more = len(loader.shares) - 3
        rows[f"loader {number}"] = (
            f"{names}{f' and {more:,} more' if more > 0 else ''}: {loader.workers} workers, "
            f"{loader.seconds:.3g} s, {_mebibytes(loader.memory)}"
        )
    if len(layout.loaders) > _SHOWN:
        rows["others"] = f"{len(layout.loaders) - _SHOWN:,} loaders, see --json"
    print_table("layout of loaders", rows)


def _milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.3g} ms"


def _mebibytes(size: int) -> str:
    return f"{size / _MEBI:,.1f} MiB"
