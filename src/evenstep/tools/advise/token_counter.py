"""Turns a column's values into lengths: integers are lengths, lists are counted, text is tokenized.

No bad row is left out silently: one error reports all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.errors import ConfigurationError, described
from evenstep.plan.argument_checks import check_lengths
from evenstep.tools.advise.tokenizer import CountTokens
from evenstep.tools.simulate.lengths import pick_column

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
