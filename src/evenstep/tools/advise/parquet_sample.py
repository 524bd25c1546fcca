"""Lengths drawn from a Parquet file.

A column of integers is read whole: it is small, and gives the number of samples and the longest
one. For text and lists, only the row groups that hold drawn samples are read, a batch at a time.
From a file of many row groups, samples are drawn in two stages: `_ROW_GROUPS` times a row group,
with a probability proportional to its rows, then rows of these groups in equal parts. If neighbours
in the file are similar, as in a file sorted by source, such a draw is less certain than its ranges
say.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.errors import ConfigurationError
from evenstep.tools.advise.length_sample import LengthSample
from evenstep.tools.advise.token_counter import Batch, Progress, choose_column, measure_column
from evenstep.tools.advise.tokenizer import CountTokens
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
    total = int(rows.sum())
    ends = np.cumsum(rows)
    if size is None or size >= total:
        return np.arange(total), np.flatnonzero(rows)
    if np.count_nonzero(rows) <= _ROW_GROUPS:
        chosen = np.sort(random.choice(total, size, replace=False))
        return chosen, np.unique(np.searchsorted(ends, chosen, side="right"))
    times = random.multinomial(_ROW_GROUPS, rows / total)
    groups = np.flatnonzero(times)
    # Equal parts: larger groups were already drawn more often.
    shares = np.minimum(times[groups] * -(-size // _ROW_GROUPS), rows[groups])
    chosen = np.concatenate(
        [
            ends[g] - rows[g] + np.sort(random.choice(int(rows[g]), int(share), replace=False))
            for g, share in zip(groups, shares)
        ]
    )
    return chosen[np.sort(random.permutation(len(chosen))[:size])], groups


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
