"""`Source`: where samples of one kind come from, and what is done to each.

A description, which travels between processes; `open` makes a reader of it where the data is read.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

from evenstep.batch.measure import length_of
from evenstep.data.pickling import check_travels
from evenstep.data.reader import SourceReader
from evenstep.errors import ConfigurationError, SampleError
from evenstep.plan.argument_checks import check_at_least

__all__ = ["FORMATS", "Source"]

FORMATS = ("parquet", "jsonl", "webdataset")

_SUFFIXES = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".tar": "webdataset",
    ".tar.gz": "webdataset",
    ".tgz": "webdataset",
}


@dataclass(frozen=True, eq=False)
class Source:
    """See the module docstring."""

    name: str
    data: Any
    """A path, a URL that fsspec understands, a glob of either, or a list of these. Or a dataset:
    map-style or iterable, of torch, of Hugging Face, or of your own; or a function without
    arguments that makes one where it is read."""
    _: KW_ONLY
    transform: Callable[[Any], Any] | None = None
    """From a sample as it is stored to one that is trained on. Called in other processes, so it
    holds no open files, locks or connections."""
    weight: float = 1.0
    """In a mixture that has no schedule, in any unit."""
    columns: Sequence[str] | None = None
    """Fields to read; None is all of them."""
    shuffle: bool | None = None
    """False keeps the stored order. None shuffles what can be: shards and the samples in each, of
    WebDataset the order of files only, of an iterable dataset nothing."""
    seed: int | None = None
    """Of the order; None is that of the job."""
    format: str | None = None
    """"parquet", "jsonl" or "webdataset", where the names of files do not tell."""
    lengths: Callable[[Any], int | Mapping[str, int]] | None = None
    """From a transformed sample to its tokens, or to its lengths by modality; None counts
    ``input_ids``."""
    block: int = 1024
    """Samples of a shard, where files have no parts of their own: JSONL and map-style datasets."""
    storage_options: Mapping[str, Any] = field(default_factory=dict)
    """For fsspec, such as credentials or an endpoint."""

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise ConfigurationError(f"name={self.name!r} of a source must be text, not empty")
        weight = self.weight
        if (
            isinstance(weight, bool)
            or not isinstance(weight, (int, float))
            or not math.isfinite(weight)
            or weight < 0
        ):
            raise ConfigurationError(
                f"weight={weight!r} of source {self.name!r} must be a finite number from 0"
            )
        check_at_least(1, block=self.block)
        check_at_least(0, seed=self.seed)
        if isinstance(self.columns, str) or (self.columns is not None and not self.columns):
            raise ConfigurationError(
                f"columns={self.columns!r} of source {self.name!r} must be a list of names, or None"
            )
        if self.format is not None and self.format not in FORMATS:
            raise ConfigurationError(
                f"format={self.format!r} of source {self.name!r} must be one of "
                f"{', '.join(FORMATS)}"
            )
        for role in ("transform", "lengths"):
            self._check_function(role)
        self.kind  # noqa: B018  refuses data that nothing can be read of

    @property
    def paths(self) -> list[str] | None:
        """As given; None where `data` is a dataset."""
        given = self.data
        if isinstance(given, str) or hasattr(given, "__fspath__"):
            return [str(given)]
        if not isinstance(given, (list, tuple)) or not given:
            return None
        if all(isinstance(each, str) or hasattr(each, "__fspath__") for each in given):
            return [str(each) for each in given]
        return None

    @property
    def kind(self) -> str:
        """One of `FORMATS`, or "dataset".

        Raises:
            ConfigurationError: it cannot be told.
        """
        paths = self.paths
        if paths is None:
            data = self.data
            if callable(data) or hasattr(data, "__iter__") or hasattr(data, "__getitem__"):
                return "dataset"
            raise ConfigurationError(
                f"data of source {self.name!r} is a {type(data).__name__}; give a path, a URL, a "
                "glob, a list of them, or a dataset"
            )
        if self.format is not None:
            return self.format
        found = {_format_of(path) for path in paths}
        if len(found) != 1 or None in found:
            raise ConfigurationError(
                f"the format of source {self.name!r} is not told by {', '.join(paths[:3])}; name "
                f"format=, one of {', '.join(FORMATS)}"
            )
        return str(found.pop())

    @property
    def transform_name(self) -> str | None:
        """What the transform is known by in fingerprints."""
        return None if self.transform is None else _described(self.transform)

    @property
    def fingerprint(self) -> str:
        """What the description says, without a look at the data; see `SourceReader.fingerprint`."""
        data = self.paths or type(self.data).__qualname__
        parts = (self.name, data, self.kind, self.columns, self.shuffle, self.seed, self.block)
        return f"{parts} {self.transform_name}"

    def open(self, *, seed: int = 0, repeat: bool = True) -> SourceReader:
        """A reader of the data.

        Args:
            seed: of the order, unless the source has its own.
            repeat: begin again after the last sample; False ends after one pass.

        Raises:
            ConfigurationError: no such file, no samples, a column that does not exist, or a file
                with another schema than the first.
            ImportError: a library that the format or the file system needs is not installed.
        """
        reader = self._reader(self.seed if self.seed is not None else seed)
        reader.repeat = repeat
        return reader

    def _reader(self, seed: int) -> SourceReader:
        kind = self.kind
        if kind == "parquet":
            from evenstep.data.parquet import ParquetReader

            return ParquetReader(self, seed)
        if kind == "jsonl":
            from evenstep.data.jsonl import JsonLinesReader

            return JsonLinesReader(self, seed)
        if kind == "webdataset":
            from evenstep.data.webdataset import WebDatasetReader

            return WebDatasetReader(self, seed)
        from evenstep.data.map_reader import open_dataset

        return open_dataset(self, seed)

    def prepare(self, stored: Any, shard: int, index: int) -> Any:
        """The sample to train on, of one as it is stored.

        Raises:
            SampleError: the transform raised, or gave None.
        """
        if self.transform is None:
            return stored
        try:
            sample = self.transform(stored)
        except Exception as error:
            raise SampleError(
                f"transform {self.transform_name} raised {type(error).__name__} for sample "
                f"{self.name}[{shard}][{index}]: {error}; mend it, or leave out the sample"
            ) from error
        if sample is None:
            raise SampleError(
                f"transform {self.transform_name} gave None for sample "
                f"{self.name}[{shard}][{index}]; return a sample, and leave out unwanted ones "
                "where the source is made"
            )
        return sample

    def measure(self, sample: Any, shard: int, index: int) -> dict[str, int]:
        """Lengths of a prepared sample by modality; tokens alone are those of "text".

        Raises:
            SampleError: they cannot be told.
        """
        try:
            found = (self.lengths or length_of)(sample)
            by_modality = found if isinstance(found, Mapping) else {"text": found}
            return {str(name): int(length) for name, length in by_modality.items()}
        except Exception as error:
            raise SampleError(
                f"the length of sample {self.name}[{shard}][{index}] cannot be told: "
                f"{type(error).__name__}: {error}; see lengths= of Source"
            ) from error

    def _check_function(self, role: str) -> None:
        function = getattr(self, role)
        if function is None:
            return
        if not callable(function):
            raise ConfigurationError(
                f"{role}={function!r} of source {self.name!r} must be a function of a sample"
            )
        check_travels(f"{role} {_described(function)} of source {self.name!r}", function)


def _format_of(path: str) -> str | None:
    for suffix, kind in _SUFFIXES.items():
        if path.lower().endswith(suffix):
            return kind
    for packed in (".gz", ".zst", ".bz2", ".xz"):
        if path.lower().endswith(packed) and _format_of(path[: -len(packed)]) == "jsonl":
            return "jsonl"
    return None


def _described(function: Any) -> str:
    inner = getattr(function, "func", None)  # of functools.partial
    if inner is not None and hasattr(function, "keywords"):
        return f"{_described(inner)} with {function.args} {function.keywords}"
    name = getattr(function, "__qualname__", None)
    if name is not None:
        return f"{function.__module__}.{name}"
    # The default repr of objects holds an address, which differs between processes.
    return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(function))
