"""Turns a column's values into lengths: integers are lengths, lists are counted, text is tokenized.

Every bad row is counted and none is left out silently: `Counter.finish` raises one error for all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.errors import ConfigurationError, described
from evenstep.tools.advise.tokenizer import CountTokens
from evenstep.tools.simulate.lengths import check_lengths, pick_column

Progress = Callable[[int, int], None]
"""Called with samples measured so far and in all."""

_LONGEST = 2**63 - 1
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


class Counter:
    """Collects the lengths of one column, batch after batch.

    Args:
        where: name of the column in errors.
        count_tokens: needed if the column holds text.
        total: samples to expect.
    """

    def __init__(
        self,
        where: str,
        count_tokens: CountTokens | None,
        *,
        total: int,
        progress: Progress | None = None,
    ) -> None:
        self.where = where
        self._count_tokens = count_tokens
        self._total = total
        self._progress = progress
        self._kind: str | None = None
        self._lengths: list[int] = []
        self._bad: list[str] = []
        self._bad_rows = 0

    def add(self, values: Sequence[Any], rows: Sequence[int], *, row: str = "row") -> None:
        """Measures `values` of `rows`; errors call each a `row`."""
        for begin in range(0, len(values), _TEXTS):
            part = values[begin : begin + _TEXTS]
            good = [value for value in part if self._is_good(value)]
            lengths = iter(self._measure(good))
            for value, number in zip(part, rows[begin : begin + _TEXTS]):
                length = next(lengths) if self._is_good(value) else None
                if length is None:
                    self._refuse(f"{row} {number} holds {_describe(value)}{self._unlike(value)}")
                elif length < 1:
                    self._refuse(f"{row} {number} has length {length}")
                elif length > _LONGEST:
                    self._refuse(f"{row} {number} has a length of more than {_LONGEST:,}")
                else:
                    self._lengths.append(length)
            if self._progress is not None:
                self._progress(len(self._lengths), self._total)

    def finish(self) -> Int64Array:
        """[samples] int64 lengths in the order in which they were added.

        Raises:
            ConfigurationError: some rows were bad, or there were none.
        """
        if self._bad_rows:
            read = self._bad_rows + len(self._lengths)
            more = "; ..." if self._bad_rows > len(self._bad) else ""
            raise ConfigurationError(
                f"{self._bad_rows:,} of the {read:,} samples read from {self.where} cannot be "
                f"used: {'; '.join(self._bad)}{more}. "
                "Samples without tokens cannot be trained on: remove these first"
            )
        return check_lengths(np.array(self._lengths, np.int64), self.where)

    def _is_good(self, value: Any) -> bool:
        kind = _kind(value)
        if kind is not None and self._kind is None:
            self._kind = kind
            if kind == "text" and self._count_tokens is None:
                raise ConfigurationError(
                    f"{self.where} holds text: give --tokenizer NAME, FOLDER or tokenizer.json, or "
                    "another column that holds lengths or token ids"
                )
        return kind is not None and kind == self._kind

    def _measure(self, values: list[Any]) -> list[int]:
        if self._kind == "text" and values:
            assert self._count_tokens is not None
            try:
                return self._count_tokens(values)
            except Exception as error:  # such as half a surrogate pair, which JSON can hold
                raise ConfigurationError(
                    f"{self.where} holds text that the tokenizer refuses: "
                    f"{described(error)}; remove it first"
                ) from error
        return [value if self._kind == "lengths" else len(value) for value in values]

    def _unlike(self, value: Any) -> str:
        unlike = _kind(value) is not None and _kind(value) != self._kind
        return f" where others hold {self._kind}" if unlike else ""

    def _refuse(self, reason: str) -> None:
        self._bad_rows += 1
        if len(self._bad) < 3:
            self._bad.append(reason)


def _kind(value: Any) -> str | None:
    if isinstance(value, str):
        return "text"
    if isinstance(value, int) and not isinstance(value, bool):
        return "lengths"
    if isinstance(value, np.ndarray):
        return (
            "token ids"
            if value.ndim == 1 and (value.dtype.kind in "iu" or not len(value))
            else None
        )
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
        return {"str": "text", "dict": "a record"}[type(value).__name__]
    return f"{value!r} ({type(value).__name__})"
