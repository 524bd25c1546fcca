"""Turns a column's values into lengths: integers are lengths, lists are counted, text is tokenized.

A tokenizer counts the tokens of text, and never truncates or pads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.errors import ConfigurationError, described, needing
from evenstep.plan.value_checks import check_lengths
from evenstep.tools.simulate.lengths import pick_column

CountTokens = Callable[[Sequence[str]], "list[int]"]
"""From texts to the number of tokens of each, special tokens included."""


def load_tokenizer(name: str) -> CountTokens:
    """The tokenizer called `name`.

    Args:
        name: a ``tokenizer.json``, a folder with one or one that transformers can read, or a
            name on the Hugging Face hub.

    Raises:
        ConfigurationError: it cannot be loaded.
        ImportError: transformers is not installed.
    """
    with needing("a tokenizer needs transformers", "hub"):
        from transformers import AutoTokenizer, PreTrainedTokenizerFast
    path = Path(name)
    if (path / "tokenizer.json").is_file():
        path /= "tokenizer.json"
    try:
        if path.suffix == ".json":
            tokenizer: Any = PreTrainedTokenizerFast(tokenizer_file=str(path))
        else:
            tokenizer = AutoTokenizer.from_pretrained(name)
    except Exception as error:  # many kinds: network, authorisation, files, versions
        raise ConfigurationError(
            f"transformers cannot load the tokenizer {name!r} ({described(error)}); give a "
            "tokenizer.json, a folder or a name on the hub"
        ) from error

    def count(texts: Sequence[str]) -> list[int]:
        coded = tokenizer(list(texts), truncation=False, padding=False, verbose=False)
        return [len(tokens) for tokens in coded["input_ids"]]

    return count


Progress = Callable[[int, int], None]
"""Called with samples measured so far and in all."""
Batch = tuple[Sequence[Any], Sequence[int]]
"""Values of a column, and the numbers of their rows."""

_TEXTS = 64  # texts tokenized at once: enough to keep a tokenizer busy, few enough for progress


def choose_column(column: str | None, names: Sequence[str], where: object, *, text: bool) -> str:
    """`column`; by default ``text`` if there is a tokenizer, else ``input_ids``, else the only one.

    Raises:
        ConfigurationError: there is no such column, or no default among several.
    """
    defaults = [name for name in (*(["text"] if text else []), "input_ids") if name in names]
    if not column and (defaults or len(names) == 1):
        column = (defaults or names)[0]
    return pick_column(column, names, where)


def measure_column(
    where: str,
    batches: Iterable[Batch],
    count_tokens: CountTokens | None,
    *,
    total: int,
    progress: Progress | None = None,
    row: str = "row",
) -> Int64Array:
    """Measures the lengths of a column.

    Args:
        where: name of the column in errors.
        count_tokens: needed if the column holds text.
        total: samples to expect.
        row: the word for a row in errors.

    Returns:
        [samples] int64.

    Raises:
        ConfigurationError: a row is bad, or there are none.
    """
    lengths: list[int] = []
    for values, rows in batches:
        for begin in range(0, len(values), _TEXTS):
            some = values[begin : begin + _TEXTS]
            for length, number in zip(_measured(where, some, count_tokens), rows[begin:]):
                if type(length) is not int or not 1 <= length < 2**63:
                    raise ConfigurationError(
                        f"{row} {number} of {where} has length {length!r}, and a sample needs at "
                        "least one token, in all rows as text, token ids or a number; remove it "
                        "first"
                    )
                lengths.append(length)
            if progress is not None:
                progress(len(lengths), total)
    return check_lengths(np.array(lengths, np.int64), where)


def _measured(where: str, values: Sequence[Any], count_tokens: CountTokens | None) -> list[Any]:
    if not isinstance(values[0], str):
        return [len(value) if isinstance(value, list) else value for value in values]
    if count_tokens is None:
        raise ConfigurationError(
            f"{where} holds text: give --tokenizer NAME, FOLDER or tokenizer.json, or another "
            "column that holds lengths or token ids"
        )
    try:
        return count_tokens(values)
    except Exception as error:  # such as half a surrogate pair, which JSON can hold, or no text
        raise ConfigurationError(
            f"{where} holds what the tokenizer refuses: {described(error)}; remove it first"
        ) from error
