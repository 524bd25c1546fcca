"""Lengths of a dataset: counted once in worker processes, and kept in a Parquet file that records
the dataset they were counted from.

A cache is wrong as soon as the data, the tokenizer, the template or the cut-off changes, and wrong
lengths make groups that run out of memory. So it is refused if the dataset's fingerprint or the
user's name for the transform has changed, or if a few samples that are counted again have other
lengths. Every sample is compared once more while training.

The file has one column, ``length``, in dataset order, and the rest in its metadata: any reader of
Parquet reads it, also `evenstep simulate`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import DataLoader, Dataset

from evenstep.batch.measure import Measure
from evenstep.batch.trim import Trim
from evenstep.data.resumable import dataset_fingerprint
from evenstep.errors import ConfigurationError, MismatchError, SampleError, described, parsing
from evenstep.files import replacing
from evenstep.plan.argument_checks import check_at_least
from evenstep.plan.lengths import Lengths
from evenstep.plan.plain_values import stable_repr
from evenstep.plan.rng import RandomStream, generator

_BLOCK = 64  # samples that a worker hands over at a time


class _Counted(Dataset[int | SampleError]):
    """Lengths in place of samples; the error of a sample that has none."""

    def __init__(self, dataset: Any, measure: Measure, indices: Sequence[int]) -> None:
        self._dataset = dataset
        self._measure = measure
        self._indices = indices

    def __len__(self) -> int:
        return len(self._indices)

    def __getitem__(self, position: int) -> int | SampleError:
        index = self._indices[position]
        name = f"sample {index}"
        try:
            return int(self._measure([self._dataset[index]], [name])[0, 0])
        except SampleError as error:
            return error
        except Exception as error:
            return SampleError(f"{name}: the dataset raised {described(error)}")


def _none_supervised(sample: Any) -> int:
    return 0  # not used; so labels need not fit the length


def count_lengths(
    dataset: Any,
    *,
    indices: Sequence[int] | None = None,
    num_workers: int = 0,
    length_fn: Callable[[Any], int] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Lengths:
    """Reads a map-style dataset once, with its transforms, and counts tokens.

    Args:
        indices: count these samples only; all by default.
        num_workers: processes that prepare samples.
        length_fn: as for `evenstep.DataLoader`.
        progress: called with samples counted so far and samples in all.

    Raises:
        ConfigurationError: the dataset has no length or no samples.
        SampleError: a sample cannot be read or has no length; exclude it from the dataset.
    """
    check_at_least(0, num_workers=num_workers)
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        raise ConfigurationError(
            f"lengths are counted by dataset index, and {type(dataset).__name__} lacks __len__ or "
            "__getitem__; policies that need no lengths in advance, such as evenstep.Even, take "
            "iterable datasets"
        )
    wanted = range(len(dataset)) if indices is None else indices
    if not len(wanted):
        raise ConfigurationError("the dataset is empty: there is nothing to count")
    measure = Measure(length_fn=length_fn, supervised_fn=_none_supervised, trim=Trim())
    counted = _Counted(dataset, measure, wanted)
    loader: DataLoader[Any] = DataLoader(
        counted, batch_size=_BLOCK, num_workers=num_workers, collate_fn=list
    )
    found: list[int] = []
    for block in loader:
        for length in block:
            if isinstance(length, SampleError):
                raise length
        found += block
        if progress is not None:
            progress(len(found), len(wanted))
    return Lengths(np.array(found, np.int64))


_VERSION = 1
_KEY = b"evenstep"
_PROBES = 16  # samples that are counted again


def write_lengths(
    path: str | os.PathLike[str],
    lengths: Lengths,
    dataset: Any,
    *,
    transform: str = "",
    length_fn: Callable[[Any], int] | None = None,
) -> None:
    """Writes the lengths that `count_lengths` found in `dataset`.

    Args:
        path: of a Parquet file, which is replaced whole or not at all.
        transform: names all that decides lengths besides the dataset's own fingerprint: tokenizer,
            template, cut-off. `read_lengths` must be given the same.
        length_fn: the function with which the lengths were counted.

    Raises:
        ConfigurationError: the dataset has another number of samples.
        ImportError: pyarrow is not installed (``pip install 'evenstep[cli]'``).
    """
    arrow, parquet = _pyarrow(path)
    if len(dataset) != len(lengths):
        raise ConfigurationError(
            f"{len(lengths):,} lengths for a dataset of {len(dataset):,} samples; count all of it"
        )
    about = {
        "version": _VERSION,
        "digest": lengths.digest,
        **_describe(dataset, transform, length_fn),
    }
    table = arrow.table({"length": lengths.values}).replace_schema_metadata(
        {_KEY: json.dumps(about).encode()}
    )
    # Of a relative path, pyarrow takes what is before a colon for a file system.
    with replacing(path) as partial:
        parquet.write_table(table, partial.absolute(), compression="zstd")


def read_lengths(
    path: str | os.PathLike[str],
    dataset: Any,
    *,
    transform: str = "",
    length_fn: Callable[[Any], int] | None = None,
) -> Lengths:
    """Lengths of `dataset` that `write_lengths` wrote.

    Prepares a few samples, to check that their lengths have not changed.

    Args:
        transform, length_fn: as for `write_lengths`.

    Raises:
        MismatchError: the file is stale: the dataset, the transform or the length function is
            another one, or samples have other lengths now.
        ConfigurationError: there is no such file, or `write_lengths` did not write it.
        ImportError: pyarrow is not installed (``pip install 'evenstep[cli]'``).
    """
    _, parquet = _pyarrow(path)
    if not Path(path).is_file():
        raise ConfigurationError(f"there is no file {path}; create it with evenstep lengths")
    try:
        with parquet.ParquetFile(Path(path).absolute()) as file:
            about = json.loads(file.schema_arrow.metadata[_KEY])
            values = file.read(columns=["length"]).column("length").to_numpy()
        if about["version"] != _VERSION:
            raise KeyError(f"version {about['version']}")
        written = about["digest"]
    except Exception as error:  # Arrow raises many kinds over a damaged file
        raise ConfigurationError(
            f"{path} was not written by evenstep lengths, or by another version of it, or is "
            f"damaged ({described(error)}); recreate it"
        ) from error
    with parsing(path, remedy="recreate it"):
        lengths = Lengths(values)
    if lengths.digest != written:
        raise ConfigurationError(f"{path} is damaged: its lengths have changed; recreate it")
    for name, now in _describe(dataset, transform, length_fn).items():
        if about.get(name) != now:
            raise MismatchError(
                f"{path} is stale: it was counted with {name} {about.get(name)!r}, and this is "
                f"{now!r}; recreate it with evenstep lengths"
            )
    _probe(path, lengths, dataset, length_fn)
    return lengths


def _probe(
    path: str | os.PathLike[str],
    lengths: Lengths,
    dataset: Any,
    length_fn: Callable[[Any], int] | None,
) -> None:
    count = min(_PROBES, len(lengths))
    chosen = np.sort(
        generator(lengths.digest, RandomStream.LENGTHS_PROBE).choice(
            len(lengths), count, replace=False
        )
    )
    now = count_lengths(dataset, indices=chosen.tolist(), length_fn=length_fn).values
    wrong = np.flatnonzero(now != lengths.values[chosen])
    if len(wrong):
        index = int(chosen[wrong[0]])
        raise MismatchError(
            f"{path} is stale: sample {index} has {now[wrong[0]]:,} tokens now and had "
            f"{lengths.values[index]:,} when it was counted; recreate it with evenstep lengths. "
            "If a sample's length is random, no cache can hold it: use an online policy, such as "
            "evenstep.Even"
        )


def _describe(
    dataset: Any, transform: str, length_fn: Callable[[Any], int] | None
) -> dict[str, Any]:
    function = None
    if length_fn is not None:
        function = getattr(length_fn, "__qualname__", None) or stable_repr(length_fn)
    return {
        "dataset": dataset_fingerprint(dataset, iterable=False),
        "transform": transform,
        "length_fn": function,
    }


def _pyarrow(path: str | os.PathLike[str]) -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ModuleNotFoundError as error:
        raise ImportError(f"{path} needs pyarrow: pip install 'evenstep[cli]'") from error
    return pyarrow, pyarrow.parquet
