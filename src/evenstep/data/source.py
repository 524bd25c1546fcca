"""`Source`: where samples of one kind come from, and how each is prepared.

A description that is sent between processes; `open_reader` makes a reader of it where the data is
read.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

from evenstep.batch.measure import length_of
from evenstep.data.block_cache import BlockCache
from evenstep.data.pickling import check_picklable, code_digest
from evenstep.errors import ConfigurationError, SampleError, described, without_queries
from evenstep.plan.value_checks import check_at_least, check_given, check_seconds, stable_repr

FORMATS = {
    "parquet": ("evenstep.data.parquet:ParquetReader", (".parquet", ".pq")),
    "jsonl": ("evenstep.data.jsonl:JsonLinesReader", (".jsonl", ".ndjson")),
    "webdataset": ("evenstep.data.webdataset:WebDatasetReader", (".tar", ".tar.gz", ".tgz")),
}
"""Of files: their reader, and how their names end."""
PACKED = ("gz", "zst", "bz2", "xz")
"""How the names of compressed files end."""


@dataclass(frozen=True, eq=False)
class Source:
    """See the module docstring.

    Args:
        name: identifies its samples, in a mixture and in states.
        data: a path, a URL that fsspec understands, a glob of either, or a list of these; or a
            map-style or iterable dataset, of torch, of Hugging Face or your own; or a function
            without arguments that makes one where it is read.
        transform: from a stored sample to the one that is trained on. Called in other processes, so
            it must not hold open files, locks or connections. A state is resumed with the same code
            only; see `evenstep.data.pickling`.
        weight: mixing weight in a mixture without a schedule, in any unit.
        columns: fields to read; None is all of them.
        shuffle: False keeps the stored order. None shuffles what can be shuffled: shards and the
            samples in each; the files of a WebDataset; nothing of an iterable dataset.
        seed: of the order; None takes the job's.
        format: "parquet", "jsonl" or "webdataset", if file names do not show it.
        lengths: from a transformed sample to its tokens, or to its lengths by modality; None counts
            ``input_ids``.
        block: samples of a shard of JSON Lines or a map-style dataset, which have no shards
            themselves.
        storage_options: for fsspec, such as credentials or an endpoint. Not in the source's repr.
        bad_samples: how many samples may fail to be read, transformed or measured before a job of
            the service ends. The next sample replaces each.
        patience: seconds for which reads are retried while the storage does not answer.
        cache: what each host keeps of files in object stores; None is that of EVENSTEP_CACHE, if it
            is set.
    """

    name: str
    data: Any
    _: KW_ONLY
    transform: Callable[[Any], Any] | None = None
    weight: float = 1.0
    columns: Sequence[str] | None = None
    shuffle: bool | None = None
    seed: int | None = None
    format: str | None = None
    lengths: Callable[[Any], int | Mapping[str, int]] | None = None
    block: int = 1024
    storage_options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    bad_samples: int = 0
    patience: float = 120.0
    cache: BlockCache | None = None
    opened: Any = field(default=None, init=False, repr=False)
    """A `FirstOpening`, in a job that was started; None where files may be others than before."""

    def __post_init__(self) -> None:
        def check(holds: object, name: str, must: str) -> None:
            if not holds:
                value = getattr(self, name)
                raise ConfigurationError(f"{name}={value!r} of source {self.name!r} must be {must}")

        check(isinstance(self.name, str) and self.name, "name", "text, not empty")
        number = isinstance(self.weight, (int, float)) and not isinstance(self.weight, bool)
        check(number and 0 <= self.weight < math.inf, "weight", "a finite number from 0")
        check_at_least(1, block=self.block)
        check_given(bad_samples=self.bad_samples)
        check_at_least(0, seed=self.seed, bad_samples=self.bad_samples)
        check_seconds("tries once", patience=self.patience)
        check(isinstance(self.cache, (BlockCache, type(None))), "cache", "a BlockCache, or None")
        named = self.columns is None or (self.columns and not isinstance(self.columns, str))
        check(named, "columns", "a list of names, or None")
        check(self.format in (None, *FORMATS), "format", f"one of {', '.join(FORMATS)}")
        for role in ("transform", "lengths"):
            function = getattr(self, role)
            if function is not None:
                check(callable(function), role, "a function of a sample")
                check_picklable(f"{role} {_described(function)} of source {self.name!r}", function)
        self.kind  # noqa: B018  refuses data that cannot be read

    @property
    def paths(self) -> list[str] | None:
        """As given; None if `data` is a dataset."""
        given = self.data if isinstance(self.data, (list, tuple)) else [self.data]
        paths = bool(given) and all(isinstance(each, (str, os.PathLike)) for each in given)
        return [str(each) for each in given] if paths else None

    @property
    def kind(self) -> str:
        """One of `FORMATS`, or "dataset".

        Raises:
            ConfigurationError: it cannot be determined.
        """
        paths = self.paths
        if paths is None:
            data = self.data
            if callable(data) or hasattr(data, "__iter__") or hasattr(data, "__getitem__"):
                return "dataset"
            raise ConfigurationError(
                f"data of source {self.name!r} is a {type(data).__name__}; give paths or a dataset"
            )
        if self.format is not None:
            return self.format
        found = {_format_of(without_queries(path)) for path in paths}
        if len(found) != 1 or None in found:
            raise ConfigurationError(
                f"the format of source {self.name!r} cannot be determined from "
                f"{', '.join(paths[:3])}; pass format=, one of {', '.join(FORMATS)}"
            )
        return str(found.pop())

    @property
    def transform_name(self) -> str | None:
        """The transform in errors."""
        return None if self.transform is None else _described(self.transform)

    @property
    def transform_code(self) -> str | None:
        """Identifies the transform in fingerprints; see `code_digest`."""
        return None if self.transform is None else code_digest(self.transform)

    def prepare(self, stored: Any, shard: int, index: int) -> Any:
        """From a stored sample to the one that is trained on.

        Raises:
            SampleError: the transform raised, or gave None.
        """
        if self.transform is None:
            return stored
        try:
            sample = self.transform(stored)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # also SystemExit
            raise SampleError(
                f"transform {self.transform_name} raised {type(error).__name__} for sample "
                f"{self.name}[{shard}][{index}]: {error}; fix the sample or exclude it"
            ) from error
        if sample is None:
            raise SampleError(
                f"transform {self.transform_name} gave None for sample {self.name}[{shard}]"
                f"[{index}]; filter unwanted ones out of the source"
            )
        return sample

    def measure(self, sample: Any, shard: int, index: int) -> dict[str, int]:
        """Lengths of a prepared sample by modality; tokens alone are those of "text".

        Raises:
            SampleError: they cannot be determined.
        """
        try:
            found = (self.lengths or length_of)(sample)
            by_modality = found if isinstance(found, Mapping) else {"text": found}
            return {str(name): int(length) for name, length in by_modality.items()}
        except Exception as error:
            raise SampleError(
                f"the length of sample {self.name}[{shard}][{index}] cannot be determined: "
                f"{described(error)}; see lengths= of Source"
            ) from error


def _format_of(path: str) -> str | None:
    for kind, (_, suffixes) in FORMATS.items():
        if path.lower().endswith(suffixes):
            return kind
    packed, _, suffix = path.rpartition(".")  # compressed lines, which their reader refuses
    return "jsonl" if suffix in PACKED and _format_of(packed) == "jsonl" else None


def _described(function: Any) -> str:
    inner = getattr(function, "func", None)  # of functools.partial
    if inner is not None and hasattr(function, "keywords"):
        return f"{_described(inner)} with {function.args} {function.keywords}"
    name = getattr(function, "__qualname__", None)
    if name is not None:
        return f"{function.__module__}.{name}"
    return stable_repr(function)
