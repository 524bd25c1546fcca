"""Lengths drawn from a Parquet file, or from a data set of Hugging Face, in a folder or on the hub.

A column of integers is read whole: it is small, and gives the number of samples and the longest
one. Of text and lists, only the drawn rows are measured, a batch at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.errors import ConfigurationError, described, needing
from evenstep.tools.advise.length_sample import LengthSample
from evenstep.tools.advise.token_counter import (
    Batch,
    CountTokens,
    Progress,
    choose_column,
    measure_column,
)
from evenstep.tools.simulate import DISTRIBUTIONS
from evenstep.tools.simulate.lengths import load_lengths, open_parquet

_BATCH = 1024  # rows
_HOW = "rows drawn at random"


def draw_from_parquet(
    path: Path,
    column: str | None,
    count_tokens: CountTokens | None,
    size: int | None,
    random: np.random.Generator,
    progress: Progress | None,
) -> LengthSample:
    """See `draw_length_sample`."""
    with open_parquet(path) as file:
        import pyarrow as arrow

        names = file.schema_arrow.names
        name = choose_column(column, names, path, text=count_tokens is not None)
        where = f"{path}:{name}"
        if not arrow.types.is_integer(file.schema_arrow.field(name).type):
            total = file.metadata.num_rows
            rows = _drawn(total, size, random, where)
            lengths = measure_column(
                where, _batches(file, name, rows), count_tokens, total=len(rows), progress=progress
            )
            return LengthSample.measured(where, lengths, total, _HOW)
    return LengthSample.choose(where, load_lengths(where), size, random)


def _drawn(total: int, size: int | None, random: np.random.Generator, where: str) -> Int64Array:
    """[drawn] numbers of rows, increasing."""
    if not total:
        raise ConfigurationError(f"{where} holds no samples")
    if size is None or size >= total:
        return np.arange(total)
    return np.sort(random.choice(total, size, replace=False))


def _batches(file: Any, column: str, rows: Int64Array) -> Iterator[Batch]:
    at = 0
    for batch in file.iter_batches(_BATCH, columns=[column]):
        begin, end = np.searchsorted(rows, [at, at + batch.num_rows])
        if begin < end:
            mine = rows[begin:end]
            yield values_of(batch.column(0).take(mine - at)), mine.tolist()
        at += batch.num_rows


def values_of(column: Any) -> list[Any]:
    """The values of an arrow array. Lists of integers become their lengths, so that token ids never
    become Python objects; an absent list stays None."""
    import pyarrow as arrow
    from pyarrow import compute

    kind = column.type
    if arrow.types.is_dictionary(kind):
        column, kind = column.dictionary_decode(), kind.value_type
    lists = arrow.types.is_list(kind) or arrow.types.is_large_list(kind)
    if lists and arrow.types.is_integer(kind.value_type):
        column = compute.list_value_length(column)
    values: list[Any] = column.to_pylist()
    return values


def draw_from_dataset(
    data: str,
    split: str,
    subset: str | None,
    count_tokens: CountTokens | None,
    size: int | None,
    random: np.random.Generator,
    progress: Progress | None,
) -> LengthSample:
    """See `draw_length_sample`. Downloads the whole split of a data set on the hub."""
    column = ""
    if not Path(data).exists():
        data, _, column = data.partition(":")
    dataset = _load_dataset(data, split, subset)
    name = choose_column(column, dataset.column_names, data, text=count_tokens is not None)
    where = f"{data}:{name}"
    total = len(dataset)
    rows = _drawn(total, size, random, where)
    drawn = dataset.select_columns([name]).with_format("arrow").select(rows)
    numbers = iter(rows.tolist())
    batches = (
        (values := values_of(table.column(0).combine_chunks()), list(islice(numbers, len(values))))
        for table in drawn.iter(batch_size=_BATCH)
    )
    lengths = measure_column(where, batches, count_tokens, total=len(rows), progress=progress)
    return LengthSample.measured(where, lengths, total, _HOW)


def _load_dataset(data: str, split: str, subset: str | None) -> Any:
    needs = "if it is a Hugging Face data set, reading it needs datasets"
    with needing(f"{data} is not a file evenstep reads; {needs}", "hub"):
        import datasets
    try:
        if not Path(data).is_dir():
            return datasets.load_dataset(data, subset, split=split)
        loaded = datasets.load_from_disk(data)
    except Exception as error:  # many kinds: network, authorisation, files, versions
        raise ConfigurationError(
            f"there is no data {data!r}: it is not a file or folder that can be read, not one of "
            f"{', '.join(DISTRIBUTIONS)}, and not on the Hugging Face hub ({described(error)})"
        ) from error
    if not isinstance(loaded, datasets.DatasetDict):
        return loaded
    if split not in loaded:
        raise ConfigurationError(
            f"{data} has no split {split!r}: give --split with one of {', '.join(loaded)}"
        )
    return loaded[split]
