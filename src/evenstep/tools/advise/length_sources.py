"""Draws a sample of lengths from the data that a user names.

Every sample is equally likely to be drawn, whatever its length; drawing by position in bytes would
favour long lines. So files are read once from end to end, and only the drawn samples are parsed and
tokenized, which takes most of the time.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Iterator
from heapq import nsmallest
from pathlib import Path
from typing import Any

import numpy as np

from evenstep.errors import ConfigurationError
from evenstep.plan.rng import RandomStream, generator
from evenstep.plan.value_checks import check_at_least
from evenstep.tools.advise.length_sample import LengthSample
from evenstep.tools.advise.parquet_sample import draw_from_dataset, draw_from_parquet
from evenstep.tools.advise.token_counter import (
    CountTokens,
    Progress,
    choose_column,
    load_tokenizer,
    measure_column,
)
from evenstep.tools.simulate import DISTRIBUTIONS, load_lengths, sample_lengths
from evenstep.tools.simulate.lengths import PARQUET, existing_file

SAMPLE_SIZE = 4000
"""Samples drawn by default."""

_JSON_LINES = re.compile(r"(?P<path>.*\.(?:jsonl|ndjson)(?:\.gz)?)(?::(?P<column>.*))?")
_OTHER_FILE = re.compile(r".*\.(?:csv|tsv|txt|json|gz|zst|arrow|bin|idx|tar|pt|npz)")


def draw_length_sample(
    data: str,
    *,
    tokenizer: str | None = None,
    size: int | None = SAMPLE_SIZE,
    seed: int = 0,
    split: str = "train",
    subset: str | None = None,
    progress: Progress | None = None,
) -> LengthSample:
    """Draws a sample of the lengths of `data`.

    Args:
        data: ``FILE.npy`` of lengths, ``FILE.parquet[:COLUMN]``, ``FILE.jsonl[:COLUMN]`` (also
            ``.jsonl.gz``), a folder that Hugging Face ``save_to_disk`` wrote or a data set on its
            hub, both with ``[:COLUMN]``, too, or a name in `DISTRIBUTIONS`. Of the column, integers
            are lengths, lists count their elements, text is tokenized. By default it is
            ``input_ids``, or ``text`` if there is a `tokenizer`, or the only one.
        tokenizer: see `load_tokenizer`; needed for text.
        size: samples to draw; None takes all.
        seed: seed of the draw.
        split, subset: parts of a Hugging Face data set; None takes the only subset.

    Raises:
        ConfigurationError: no such data, column or tokenizer; or samples without a usable length.
        ImportError: a package is missing that reading `data` needs.
    """
    check_at_least(1, size=size)
    check_at_least(0, seed=seed)
    random = generator(seed, RandomStream.ADVICE_SAMPLE)
    parquet, lines = PARQUET.fullmatch(data), _JSON_LINES.fullmatch(data)
    if data in DISTRIBUTIONS:
        return _of_distribution(data, size, seed)
    if data.endswith(".npy"):
        return LengthSample.choose(data, load_lengths(data), size, random)
    count_tokens = None if tokenizer is None else load_tokenizer(tokenizer)
    if parquet is not None:
        path, column = existing_file(parquet["path"]), parquet["column"]
        return draw_from_parquet(path, column, count_tokens, size, random, progress)
    if lines is not None:
        path, column = existing_file(lines["path"]), lines["column"]
        return _of_lines(path, column, count_tokens, size, random, progress)
    if Path(data).is_file() or (_OTHER_FILE.fullmatch(data) and not Path(data).is_dir()):
        raise ConfigurationError(
            f"cannot read {data}: give FILE.npy, FILE.parquet, FILE.jsonl, a Hugging Face data set "
            f"or one of {', '.join(DISTRIBUTIONS)}"
        )
    return draw_from_dataset(data, split, subset, count_tokens, size, random, progress)


def _of_distribution(name: str, size: int | None, seed: int) -> LengthSample:
    if size is None:
        raise ConfigurationError(
            f"{name} is a distribution, which is unlimited; give the number of samples to draw"
        )
    return LengthSample(
        name=name,
        lengths=sample_lengths(name, size, seed),
        total=None,
        longest=DISTRIBUTIONS[name].longest,
        how="drawn from the distribution, stratum by stratum",
    )


def _of_lines(
    path: Path,
    column: str | None,
    count_tokens: CountTokens | None,
    size: int | None,
    random: np.random.Generator,
    progress: Progress | None,
) -> LengthSample:
    drawn, total = draw_lines(path, size, random)
    if not drawn:
        raise ConfigurationError(f"{path} holds no samples")
    names = list(_record(*drawn[0], path))
    field = choose_column(column, names, path, text=count_tokens is not None)
    where = f"{path}:{field}"
    values = [_record(number, line, path).get(field) for number, line in drawn]
    batch = values, [number for number, _ in drawn]
    lengths = measure_column(
        where, [batch], count_tokens, total=len(drawn), progress=progress, row="line"
    )
    return LengthSample.measured(where, lengths, total, "lines drawn at random from the whole file")


def draw_lines(
    path: Path, size: int | None, random: np.random.Generator
) -> tuple[list[tuple[int, bytes]], int]:
    """Draws lines without replacement, each equally likely. Blank lines are skipped.

    The file is read once, with `size` lines in memory.

    Returns:
        (number from 1, content) of the lines drawn, in the file's order, and the number of all
        lines.

    Raises:
        ConfigurationError: the file cannot be read.
    """
    total = 0

    def lines() -> Iterator[tuple[int, bytes]]:
        nonlocal total
        with gzip.open(path, "rb") if path.suffix == ".gz" else open(path, "rb") as file:
            for number, content in enumerate(file, 1):
                if not content.isspace():
                    total += 1
                    yield number, content

    try:
        if size is None:
            return list(lines()), total
        return sorted(nsmallest(size, lines(), key=lambda _: random.random())), total
    except (OSError, EOFError, zlib.error) as error:
        raise ConfigurationError(f"{path} cannot be read: {error}") from error


def _record(number: int, line: bytes, path: Path) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"line {number} of {path} is not JSON: {error}") from None
    if not isinstance(record, dict):
        raise ConfigurationError(f"line {number} of {path} is not an object with named fields")
    return record
