"""Lengths drawn from a Hugging Face data set, in a folder or on the hub."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from evenstep.errors import ConfigurationError, EvenstepError, described
from evenstep.tools.advise.length_sample import LengthSample
from evenstep.tools.advise.parquet_sample import add_column
from evenstep.tools.advise.token_counter import Counter, Progress, choose_column
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
    names = dataset.column_names
    name = choose_column(column, names, data, text=count_tokens is not None)
    where = f"{data}:{name}"
    total = len(dataset)
    if not total:
        raise ConfigurationError(f"{where} holds no samples")
    whole = size is None or size >= total
    rows = np.arange(total) if whole else np.sort(random.choice(total, size, replace=False))
    drawn = dataset.select_columns([name]).with_format("arrow")
    if not whole:
        drawn = drawn.select(rows)
    counter = Counter(where, count_tokens, total=len(rows), progress=progress)
    at = 0
    try:
        for table in drawn.iter(batch_size=_BATCH):
            values = table.column(name).combine_chunks()
            add_column(counter, values, rows[at : at + len(values)])
            at += len(values)
    except EvenstepError:
        raise
    except Exception as error:  # Arrow raises many kinds over a damaged file
        raise ConfigurationError(
            f"{where} cannot be read: {described(error)}; write or download it again"
        ) from error
    lengths = counter.finish()
    return LengthSample.measured(where, lengths, total, "rows drawn at random")


def _load(data: str, split: str, subset: str | None) -> Any:
    try:
        import datasets
    except ImportError as error:
        raise ImportError(
            f"{data} is not a file evenstep reads; if it is a Hugging Face data set, reading it "
            "needs datasets: pip install 'evenstep[hub]'"
        ) from error
    folder = Path(data).is_dir()
    try:
        if folder:
            loaded = datasets.load_from_disk(data)
            if isinstance(loaded, datasets.DatasetDict):
                return loaded[_split(split, loaded, data)]
            return loaded
        return datasets.load_dataset(data, subset, split=split)
    except ConfigurationError:
        raise
    except Exception as error:  # many kinds: network, authorisation, files, versions
        first = (str(error).splitlines() or [""])[0]
        kind = f"{type(error).__name__}: {first}"
        if folder:
            raise ConfigurationError(
                f"{data} cannot be read as a folder written by save_to_disk ({kind})"
            ) from error
        raise ConfigurationError(
            f"there is no data {data!r}: it is not a file or folder, not one of "
            f"{', '.join(DISTRIBUTIONS)}, and not on the Hugging Face hub ({kind})"
        ) from error


def _split(split: str, loaded: Any, data: str) -> str:
    if split not in loaded:
        raise ConfigurationError(
            f"{data} has no split {split!r}: give --split with one of {', '.join(loaded)}"
        )
    return split
