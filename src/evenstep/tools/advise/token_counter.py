"""Turns a column's values into lengths: integers are lengths, lists are counted, text is tokenized.

No bad row is left out silently: one error reports all of them.

A tokenizer counts the tokens of text, and never truncates or pads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.errors import ConfigurationError, described
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
        ImportError: ``tokenizers`` (for files) or ``transformers`` (for names) is not installed.
    """
    path = Path(name)
    if path.is_dir() and (path / "tokenizer.json").is_file():
        path = path / "tokenizer.json"
    if path.is_file() or name.endswith(".json"):
        return _from_file(path)
    return _from_transformers(name)


def _from_file(path: Path) -> CountTokens:
    if not path.is_file():
        raise ConfigurationError(f"there is no tokenizer file {path}")
    try:
        from tokenizers import Tokenizer
    except ModuleNotFoundError as error:
        raise ImportError(
            f"reading {path} needs tokenizers: pip install 'evenstep[hub]'"
        ) from error
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the package raises bare Exception
        raise ConfigurationError(f"{path} cannot be read as a tokenizer: {error}") from error
    # A tokenizer.json may set both, which would make long samples look short.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return lambda texts: [len(coded) for coded in tokenizer.encode_batch(list(texts))]


def _from_transformers(name: str) -> CountTokens:
    try:
        from transformers import AutoTokenizer
    except ModuleNotFoundError as error:
        raise ImportError(
            f"the tokenizer {name!r} needs transformers: pip install 'evenstep[hub]'; or give a "
            "tokenizer.json"
        ) from error
    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(name)
    except Exception as error:  # many kinds: network, authorisation, files, versions
        first = (str(error).splitlines() or [""])[0]
        raise ConfigurationError(
            f"there is no tokenizer {name!r}: it is not a file or folder, and transformers could "
            f"not load it ({type(error).__name__}: {first})"
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
        ConfigurationError: some rows are bad, or there are none.
    """
    lengths: list[int] = []
    bad: list[str] = []
    kind = None
    for values, rows in _small(batches):
        kinds = [_kind(value) for value in values]
        kind = kind or next(filter(None, kinds), None)
        good = [value for value, own in zip(values, kinds) if own and own == kind]
        measured = iter(_measure(where, good, kind, count_tokens))
        for value, own, number in zip(values, kinds, rows):
            if own is None or own != kind:
                unlike = "" if own is None else f" where others hold {kind}"
                bad.append(f"{row} {number} holds {_describe(value)}{unlike}")
            elif not 1 <= (length := next(measured)) < 2**63:
                bad.append(f"{row} {number} has length {length}")
            else:
                lengths.append(length)
        if progress is not None:
            progress(len(lengths), total)
    if bad:
        raise ConfigurationError(
            f"{len(bad):,} of the {len(bad) + len(lengths):,} samples read from {where} cannot be "
            f"used: {'; '.join(bad[:3])}{'; ...' if len(bad) > 3 else ''}. "
            "Samples without tokens cannot be trained on: remove these first"
        )
    return check_lengths(np.array(lengths, np.int64), where)


def _small(batches: Iterable[Batch]) -> Iterator[Batch]:
    for values, rows in batches:
        for begin in range(0, len(values), _TEXTS):
            yield values[begin : begin + _TEXTS], rows[begin : begin + _TEXTS]


def _measure(
    where: str, values: list[Any], kind: str | None, count_tokens: CountTokens | None
) -> list[int]:
    if kind != "text":
        return [value if kind == "lengths" else len(value) for value in values]
    if count_tokens is None:
        raise ConfigurationError(
            f"{where} holds text: give --tokenizer NAME, FOLDER or tokenizer.json, or another "
            "column that holds lengths or token ids"
        )
    try:
        return count_tokens(values) if values else []
    except Exception as error:  # such as half a surrogate pair, which JSON can hold
        raise ConfigurationError(
            f"{where} holds text that the tokenizer refuses: {described(error)}; remove it first"
        ) from error


def _kind(value: Any) -> str | None:
    if isinstance(value, str):
        return "text"
    if isinstance(value, int) and not isinstance(value, bool):
        return "lengths"
    if isinstance(value, list) and all(type(token) is int for token in value):
        return "token ids"
    return None


def _describe(value: Any) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, list):
        kinds = sorted({type(element).__name__ for element in value})
        return f"a list of {' and '.join(kinds)}, not of token ids" if kinds else "an empty list"
    if isinstance(value, (str, dict)):
        return "text" if isinstance(value, str) else "a record"
    return f"{value!r} ({type(value).__name__})"
