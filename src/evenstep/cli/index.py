"""``evenstep index``: what opening the files of sources finds out, before a job starts."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from evenstep.cli.output import note, print_figures, print_json, progress_bar
from evenstep.cli.shared_options import Json, load_job
from evenstep.data import Source, open_reader
from evenstep.data.file_index import FOLDER_VARIABLE, watched
from evenstep.data.source_files import in_threads
from evenstep.errors import ConfigurationError


def command(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="SOURCE...",
            help="A path, a URL or a glob, as in `es.Source`, of Parquet, JSON Lines or tar files; "
            "or FILE.py with `job = es.Job(...)`: all its sources.",
        ),
    ],
    out: Annotated[
        str | None,
        typer.Option(
            metavar="FOLDER",
            help="Where to keep the index: a folder, which hosts may share, or a URL.",
            show_default="EVENSTEP_INDEX, or ~/.cache/evenstep",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Build the index of a job's files, so that its start does not read them.

    Without it the first start does the same, before its first step. What is there already is not
    read again, so run it again after files were added. Loaders find the index where EVENSTEP_INDEX
    says, on every host. Name JSON Lines by FILE.py if their `block` is not the default.

    \b
    Examples:
      evenstep index 's3://bucket/web/*.tar' 's3://bucket/code/*.parquet' --out /shared/index
      EVENSTEP_INDEX=/shared/index evenstep index job.py
    """
    found = [source for text in sources for source in _sources_of(text)]
    of_files = [source for source in found if source.kind != "dataset"]
    if not of_files:
        raise ConfigurationError(
            f"{' '.join(sources)} has datasets alone; only sources of files have an index"
        )
    if left := len(found) - len(of_files):
        note(f"left out {left:,} sources that are datasets, which have no index")
    with (
        _kept_in(out),
        progress_bar("indexing") as show,
        watched(lambda now: show and show(now.kept + now.made, now.files)) as files,
    ):
        samples = sum(in_threads(_index, of_files))
    figures = {
        "sources": len(of_files),
        "samples": samples,
        **{name: getattr(files, name) for name in ("files", "bytes", "kept", "made")},
    }
    if json:
        print_json(figures)
    else:
        print_figures("index", figures, _ROWS)
    if files.lost:
        raise ConfigurationError(
            f"the index of {files.lost:,} files could not be written, see above; name another "
            "folder with --out"
        )
    if out is not None:
        note(f"start the job with {FOLDER_VARIABLE}={out} in the environment of its loaders")


_ROWS = {
    "sources": ("sources", ","),
    "samples": ("samples", ","),
    "files": ("files", ","),
    "  that were in the index": ("kept", ","),
    "  that were read": ("made", ","),
    "bytes of the files": ("bytes", ","),
}


@contextmanager
def _kept_in(place: str | None) -> Iterator[None]:
    """Keeps the index in a place; None is where it always is."""
    before = os.environ.get(FOLDER_VARIABLE, "")
    os.environ[FOLDER_VARIABLE] = before if place is None else place
    try:
        yield
    finally:
        os.environ[FOLDER_VARIABLE] = before


def _sources_of(text: str) -> list[Source]:
    if text.partition(":")[0].endswith(".py"):
        return list(load_job(text).sources)
    return [Source(text, text)]


def _index(source: Source) -> int:
    """Opens a source, which keeps what that finds out, and returns the samples of a pass."""
    with open_reader(source) as reader:
        _ = reader.fingerprint
        assert reader.size is not None, "the size of files is known"
        return reader.size
