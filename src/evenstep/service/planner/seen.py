"""What was seen: which samples went into which steps and ranks, in Parquet.

    RUN/run.json                    the sources of the job, the run's first step, and the run whose
                                    state it began with
    RUN/NUMBER-FIRST-LAST.parquet   the samples of the steps from FIRST to LAST, a row each

Rows are sorted by source, shard and index: they take little space so, and a query of a sample
reads little of a file. `seen_writer` writes the files.

Each start of a job is a run. The last run counts; for the steps before its first one the run whose
state it began with does, and so on. A run may plan a step again, for another mesh or after the
planner has died: of its files that have the step, the one with the highest number counts.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.errors import ConfigurationError, described, needing
from evenstep.mixture.sample_table import Int32Array, SampleId
from evenstep.service.planner.store.run_store import RunPlace, new_run, runs_of
from evenstep.service.planner.store.store_files import UrlFolder, decoded, encoded, url_folder
from evenstep.strategy import LoadingPlan

_RUN_FILE = "run.json"
_SUFFIX = ".parquet"
_ROWS = 1 << 13  # of a row group: what a query of a sample reads of each file
STATE_KEY = "seen"
"""Of a state: the run that planned the steps before it."""


@dataclass(frozen=True, order=True)
class SeenFile:
    """A file of rows."""

    run: str
    number: int
    """Of the run's files, in the order in which they were written."""
    first: int
    last: int
    """Steps; it has all from the first to the last."""

    @property
    def name(self) -> str:
        return f"{self.number:06d}-{self.first:09d}-{self.last:09d}{_SUFFIX}"


def begin_run(
    url: str | os.PathLike[str] | None, sources: Sequence[str], state: Mapping[str, Any] | None
) -> RunPlace | None:
    """A place for the record of the next run; None without a URL.

    Args:
        sources: names of the job's.
        state: that the run begins with.

    Raises:
        ConfigurationError: the folder cannot be listed or written.
        ImportError: pyarrow, fsspec, or the package that it needs for the URL, is not installed.
    """
    place = new_run(url)
    if place is not None:
        arrow()
        state = state or {}
        about = {
            "sources": list(sources),
            "first": state.get("step", 0),
            "follows": state.get(STATE_KEY),
        }
        url_folder(place.url).folder(place.run).put(_RUN_FILE, encoded(place.run, about))
    return place


def files_of(folder: UrlFolder, run: str) -> list[SeenFile]:
    """
    Args:
        folder: of the run.

    Raises:
        ConfigurationError: it cannot be listed.
    """
    names = [name.removesuffix(_SUFFIX) for name in folder.names() if name.endswith(_SUFFIX)]
    return [SeenFile(run, *map(int, name.split("-"))) for name in names]


def arrow() -> Any:
    """
    Raises:
        ImportError: pyarrow is not installed.
    """
    with needing("a record of what was seen needs pyarrow", "sources"):
        import pyarrow
        import pyarrow.parquet
    return pyarrow


def _schema() -> Any:
    pa = arrow()
    kinds = {"step": "int64", "source": "string", "shard": "int32", "index": "int64"}
    return pa.schema({**kinds, "rank": "int32"}.items())


# Writing


class SeenStep(NamedTuple):
    """The samples of a step, in columns with a row each."""

    step: int
    sources: tuple[str, ...]
    """Names by number, as in `source`."""
    source: Int32Array
    shard: Int32Array
    index: Int64Array  # type: ignore[assignment]
    rank: Int32Array
    """Data-parallel."""

    @classmethod
    def of(cls, plan: LoadingPlan) -> SeenStep:
        """Those that the plan has placed; the others are carried to a later one."""
        placed, samples, tree = plan.assignment.placed, plan.samples, plan.tree
        rank_of = np.empty(plan.buckets, np.int32)  # [buckets]
        # [PP, DP, CP, TP]
        rank_of[tree.bucket_of(plan.axis)] = np.arange(tree.sizes["DP"])[:, None, None]
        return cls(
            plan.step,
            samples.sources,
            samples.source[placed],
            samples.shard[placed],
            samples.index[placed],
            rank_of[plan.assignment.bucket[placed]],
        )


def parquet_of(steps: Sequence[SeenStep]) -> bytes:
    """A file of these steps of one job, of which there is one at least."""
    pa = arrow()
    source, shard, index, rank = map(np.concatenate, list(zip(*steps))[2:])
    step = np.repeat([each.step for each in steps], [len(each.rank) for each in steps])
    order = np.lexsort((step, index, shard, source))
    names = [name.encode() for name in steps[0].sources]
    ends = np.cumsum([0, *map(len, names)], dtype=np.int32)
    texts = pa.StringArray.from_buffers(
        len(names), pa.py_buffer(ends), pa.py_buffer(b"".join(names))
    )
    # Not pyarrow.array, which imports pandas: 40 MB in the planner's process.
    step, source, shard, index, rank = (
        pa.Array.from_buffers(
            pa.from_numpy_dtype(each.dtype), len(each), [None, pa.py_buffer(each[order])]
        )
        for each in (step, source, shard, index, rank)
    )
    source = pa.DictionaryArray.from_arrays(source, texts).cast(pa.string())
    sink = pa.BufferOutputStream()
    pa.parquet.write_table(
        pa.table([step, source, shard, index, rank], schema=_schema()),
        sink,
        row_group_size=_ROWS,
        compression="zstd",
        use_dictionary=["source", "rank"],
        column_encoding=dict.fromkeys(("step", "shard", "index"), "DELTA_BINARY_PACKED"),
    )
    return bytes(sink.getvalue())


# Queries


def sample_named(text: str) -> SampleId:
    """
    Args:
        text: SOURCE/SHARD/INDEX.

    Raises:
        ConfigurationError: it is not.
    """
    try:
        source, shard, index = text.rsplit("/", 2)
        return SampleId(source, int(shard), int(index))
    except ValueError:
        raise ConfigurationError(
            f"sample {text!r} is not SOURCE/SHARD/INDEX, such as code/12/345"
        ) from None


class SeenStore:
    """What all runs of a folder have recorded, as it was listed when this was made."""

    def __init__(self, url: str | os.PathLike[str]) -> None:
        """
        Raises:
            ConfigurationError: the folder cannot be read, or has no record.
            ImportError: pyarrow, fsspec, or the package that it needs for the URL, is not
                installed.
        """
        self._folder = url_folder(url)
        self._files = {
            run: sorted(files_of(self._folder.folder(run), run), reverse=True)
            for run in runs_of(url)
        }
        self._files = {run: files for run, files in self._files.items() if files}
        self._about = {run: self._read_about(run) for run in self._files}
        if not self._files:
            raise ConfigurationError(
                f"{self._folder} has no record of what was seen: give the folder of `evenstep "
                "service run --seen`, or of seen= of LogOptions. A running job writes there every "
                "64 steps or 300 seconds"
            )
        self.counting = self._counting()
        """By run that counts, the steps for which it does."""

    def _counting(self) -> dict[str, range]:
        found: dict[str, range] = {}
        run, end = max(self._files), 1 + max(file.last for file in self._files[max(self._files)])
        while run in self._files and run not in found:
            about = self._about[run]
            found[run] = range(about["first"], end)
            run, end = about["follows"], about["first"]
        return found

    def _read_about(self, run: str) -> dict[str, Any]:
        content = self._folder.folder(run).get(_RUN_FILE)
        about = None if content is None else decoded(run, content)
        if about is None:
            raise ConfigurationError(
                f"{self._folder}/{run}/{_RUN_FILE} is missing or damaged; give a whole copy of the "
                "folder"
            )
        found: dict[str, Any] = about
        return found

    def counts(self, run: str, step: int) -> bool:
        """Whether what a run planned for a step counts: no later run has taken its place."""
        return step in self.counting.get(run, ())

    def missing(self, run: str) -> list[tuple[int, int]]:
        """The steps of a run that counts that it did not record, as first and last ones: the
        storage failed, or the job was killed."""
        steps = self.counting[run]
        at, gaps = steps.start, []
        files = sorted(self._files[run], key=lambda file: file.first)
        for begin, end in [*((file.first, file.last + 1) for file in files), (steps.stop,) * 2]:
            if at < min(begin, steps.stop):
                gaps.append((at, min(begin, steps.stop) - 1))
            at = max(at, end)
        return gaps

    def of_step(self, step: int) -> list[dict[str, Any]]:
        """The samples of a step, of each run that planned it: "run", "step", "rank" and where each
        is stored, by run and rank.

        Raises:
            ConfigurationError: a file cannot be read.
        """
        files = [file for run in self._files if (file := self._file_of(run, step)) is not None]
        found = self._rows(files, ("step", step))
        return sorted(found, key=lambda row: (row["run"], row["rank"]))

    def of_sample(self, sample: SampleId) -> list[dict[str, Any]]:
        """The same of each time that a sample was planned, by run, step and rank.

        Raises:
            ConfigurationError: no run has such a source, or a file cannot be read.
        """
        sources = {name: None for run in self._files for name in self._about[run]["sources"]}
        if sample.source not in sources:
            raise ConfigurationError(
                f"no run in {self._folder} has a source {sample.source!r}; they have "
                f"{', '.join(sources)}"
            )
        files = [file for each in self._files.values() for file in each]
        found = self._rows(files, *zip(SampleId._fields, sample))
        return sorted(found, key=lambda row: (row["run"], row["step"], row["rank"]))

    def _file_of(self, run: str, step: int) -> SeenFile | None:
        """The file with what counts of a step of a run."""
        having = (file for file in self._files[run] if file.first <= step <= file.last)
        return next(having, None)

    def _rows(self, files: Sequence[SeenFile], *wanted: tuple[str, Any]) -> list[dict[str, Any]]:
        arrow()  # or what to install
        from pyarrow import dataset as ds  # which import pandas where it is installed
        from pyarrow import fs

        by_path = {self._folder.path(f"{file.run}/{file.name}"): file for file in files}
        where = None
        for name, value in wanted:
            equal = ds.field(name) == value
            where = equal if where is None else where & equal
        try:
            # Not ds.dataset, which asks the storage about each file, one after the other.
            found = ds.FileSystemDataset.from_paths(
                list(by_path),
                schema=_schema(),
                format=ds.ParquetFileFormat(),
                filesystem=fs.PyFileSystem(fs.FSSpecHandler(self._folder.system)),
            ).to_table(columns=[*_schema().names, "__filename"], filter=where)
        except (OSError, ValueError) as error:
            raise ConfigurationError(
                f"{self._folder} cannot be read: {described(error)}; if a file is damaged, remove "
                "it, and its steps are told to be missing"
            ) from error
        rows = []
        for row in found.to_pylist():
            file = by_path[row.pop("__filename")]
            if file == self._file_of(file.run, row["step"]):
                rows.append({"run": file.run, **row})
        return rows
