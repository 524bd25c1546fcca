"""Documents cut into pieces, and documents that are too long.

A piece is the tokens ``[begin, end)`` of a document. To the model it is another document, which
attends to nothing outside it. Invariant: pieces of a document do not overlap and come in order.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.errors import SampleError
from evenstep.plan.value_checks import check_at_least, check_one_of

OVER_LONG = ("error", "split", "truncate")
"""What can be done with a document that is too long."""


@dataclass(frozen=True)
class Pieces:
    """Pieces of documents; all three columns are [pieces] int64."""

    documents: Int64Array
    """Position of the document that each piece is part of."""
    begins: Int64Array
    ends: Int64Array

    @classmethod
    def whole(cls, lengths: Int64Array) -> Pieces:
        """Every document in one piece."""
        return cls(np.arange(len(lengths), dtype=np.int64), np.zeros_like(lengths), lengths)

    def __len__(self) -> int:
        return len(self.documents)

    @property
    def lengths(self) -> Int64Array:
        """[pieces] tokens of each."""
        return self.ends - self.begins


def cut_long(lengths: Int64Array, limit: int, over_long: str) -> Pieces:
    """Cuts documents into pieces of at most `limit` tokens, in order of arrival.

    Args:
        lengths: [documents] int64, each positive.
        limit: tokens of the longest piece.
        over_long: what is done with a longer document. "error" refuses it. "split" makes as few
            pieces as possible, as equal as possible: no tail of a few tokens that attend to next
            to nothing. "truncate" keeps its first `limit` tokens.

    Raises:
        SampleError: a document is longer, with "error".
        ConfigurationError: `over_long` is not one of the three.
    """
    check_at_least(1, limit=limit)
    check_one_of(OVER_LONG, over_long=over_long)
    long = lengths > limit
    if not long.any():
        return Pieces.whole(lengths)
    if over_long == "error":
        first = int(long.argmax())
        raise SampleError(
            f"document {first} has {lengths[first]:,} tokens, over the limit of {limit:,}; choose "
            'over_long="split" or "truncate", or raise the limit'
        )
    if over_long == "truncate":
        whole = Pieces.whole(lengths)
        return Pieces(whole.documents, whole.begins, np.minimum(lengths, limit))
    parts = -(-lengths // limit)  # [documents]
    documents = np.arange(len(lengths), dtype=np.int64).repeat(parts)  # [pieces]
    part = np.arange(len(documents)) - (parts.cumsum() - parts).repeat(parts)  # [pieces] from 0
    length, count = lengths[documents], parts[documents]
    return Pieces(documents, part * length // count, (part + 1) * length // count)
