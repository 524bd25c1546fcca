"""Lengths drawn from a Hugging Face data set, in a folder or on the hub."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.errors import ConfigurationError, described
from evenstep.tools.advise.length_sample import LengthSample
from evenstep.tools.advise.parquet_sample import values_of
from evenstep.tools.advise.token_counter import Batch, Progress, choose_column, measure_column
from evenstep.tools.advise.tokenizer import CountTokens
from evenstep.tools.simulate import DISTRIBUTIONS

_BATCH = 1024


def draw_from_dataset(
    data: str,
    split: str,
    subset: str | None,
    column: str | None,
    count_tokens: CountTokens | None,
    size: int | None,
    random: np.random.Generator,
    progress: Progress | None,
) -> LengthSample:
    """See `draw_length_sample`. Downloads the whole split of a data set on the hub."""
    if column is None and not Path(data).exists():
        data, _, named = data.partition(":")
        column = named or None
    dataset = _load(data, split, subset)
    name = choose_column(column, dataset.column_names, data, text=count_tokens is not None)
    where = f"{data}:{name}"
    total = len(dataset)
    if not total:
        raise ConfigurationError(f"{where} holds no samples")
    drawn, rows = dataset.select_columns([name]).with_format("arrow"), np.arange(total)
    if size is not None and size < total:
        rows = np.sort(random.choice(total, size, replace=False))
        drawn = drawn.select(rows)
    lengths = measure_column(
        where, _batches(drawn, where, rows), count_tokens, total=len(rows), progress=progress
    )
    return LengthSample.measured(where, lengths, total, "rows drawn at random")


def _batches(drawn: Any, where: str, rows: Int64Array) -> Iterator[Batch]:
    tables, at = drawn.iter(batch_size=_BATCH), 0
    while at < len(rows):
        try:
            values = values_of(next(tables).column(0).combine_chunks())
        except Exception as error:  # Arrow raises many kinds over a damaged file
            raise ConfigurationError(
                f"{where} cannot be read: {described(error)}; write or download it again"
            ) from error
        yield values, rows[at : at + len(values)].tolist()
        at += len(values)


def _load(data: str, split: str, subset: str | None) -> Any:
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
        kind = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
        if Path(data).is_dir():
            raise ConfigurationError(
                f"{data} cannot be read as a folder written by save_to_disk ({kind})"
            ) from error
        raise ConfigurationError(
            f"there is no data {data!r}: it is not a file or folder, not one of "
            f"{', '.join(DISTRIBUTIONS)}, and not on the Hugging Face hub ({kind})"
        ) from error
    if not isinstance(loaded, datasets.DatasetDict):
        return loaded
    if split not in loaded:
        raise ConfigurationError(
            f"{data} has no split {split!r}: give --split with one of {', '.join(loaded)}"
        )
    return loaded[split]
