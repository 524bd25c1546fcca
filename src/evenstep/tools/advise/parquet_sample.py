"""Lengths drawn from a Parquet file.

A column of integers is read whole: it is small, and gives the number of samples and the longest
one. For text and lists, only the row groups that hold drawn samples are read, a batch at a time.
From a file of many row groups, `_ROW_GROUPS` of them are drawn first.

A data set of Hugging Face is drawn from likewise, in a folder or on the hub.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.errors import ConfigurationError, described
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

_ROW_GROUPS = 128
_BATCH = 1024  # rows


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
            counts = [file.metadata.row_group(g).num_rows for g in range(file.num_row_groups)]
            rows = np.array(counts, np.int64)
            total = int(rows.sum())
            if not total:
                raise ConfigurationError(f"{where} holds no samples")
            chosen, groups = draw_rows(rows, size, random)
            batches = _batches(file, name, rows, groups, chosen)
            lengths = measure_column(
                where, batches, count_tokens, total=len(chosen), progress=progress
            )
            how = "rows drawn at random from the whole file"
            if len(groups) < np.count_nonzero(rows):
                how = f"rows drawn at random from {len(groups)} of {len(rows):,} row groups"
            return LengthSample.measured(where, lengths, total, how)
    return LengthSample.choose(where, load_lengths(where), size, random)


def draw_rows(
    rows: Int64Array, size: int | None, random: np.random.Generator
) -> tuple[Int64Array, Int64Array]:
    """Draws the rows of a file to measure.

    Args:
        rows: [row groups] rows in each.
        size: rows to draw; None takes all.

    Returns:
        The rows drawn, by number in the file, and the row groups that hold them, both increasing.
    """
    groups = np.flatnonzero(rows)
    if size is not None and len(groups) > _ROW_GROUPS:
        groups = np.sort(random.choice(groups, _ROW_GROUPS, replace=False))
    ends = np.cumsum(rows)
    there = np.concatenate([np.arange(ends[g] - rows[g], ends[g]) for g in groups])
    if size is None or size >= len(there):
        return there, groups
    chosen = np.sort(random.choice(there, size, replace=False))
    return chosen, np.unique(ends.searchsorted(chosen, side="right"))


def _batches(
    file: Any, column: str, rows: Int64Array, groups: Int64Array, chosen: Int64Array
) -> Iterator[Batch]:
    begins = np.cumsum(rows) - rows
    for group in groups.tolist():
        at = int(begins[group])
        for batch in file.iter_batches(_BATCH, row_groups=[group], columns=[column]):
            begin, end = np.searchsorted(chosen, [at, at + batch.num_rows])
            mine = chosen[begin:end]
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
    if not total:
        raise ConfigurationError(f"{where} holds no samples")
    drawn, rows = dataset.select_columns([name]).with_format("arrow"), np.arange(total)
    if size is not None and size < total:
        rows = np.sort(random.choice(total, size, replace=False))
        drawn = drawn.select(rows)
    numbers = iter(rows.tolist())
    batches = (
        (values := values_of(table.column(0).combine_chunks()), list(islice(numbers, len(values))))
        for table in drawn.iter(batch_size=_BATCH)
    )
    lengths = measure_column(where, batches, count_tokens, total=len(rows), progress=progress)
    return LengthSample.measured(where, lengths, total, "rows drawn at random")


def _load_dataset(data: str, split: str, subset: str | None) -> Any:
    try:
        import datasets
    except ModuleNotFoundError as error:
        raise ImportError(
            f"{data} is not a file evenstep reads; if it is a Hugging Face data set, reading it "
            "needs datasets: pip install 'evenstep[hub]'"
        ) from error
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
