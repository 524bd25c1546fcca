"""What ranks tell each other of the rows that they begin a pass with, as no rank can see alone
whether others have the same.

Ranks that share one order must have the same one, or rows would be trained on twice and others
never. Ranks that each have rows of their own should have others: a sampler that knows of no ranks,
or a stream that nobody has split, gives all of them the same. Each says so in a few digests, at the
end of one of its messages, once in a pass; their size does not depend on that of windows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np

from evenstep.errors import MismatchError
from evenstep.protocol.wire import without_suffix

READ = 512
"""Rows of an order that are looked at."""
FEW = 8
"""Samples of a stream that are looked at, and digests that a rank sends."""
_FEWEST = 3
"""Digests that are compared: fewer rows may be those that are repeated to make shares equal."""
_DISTINCT = 4
"""Samples of a stream that must differ from each other, or those of other ranks may well be equal
by themselves."""
_SAME = 0.75
"""Share of a rank's rows beyond which it is no chance that others have them, too."""
_NUMBER = np.dtype("<u8")


class FirstRows(NamedTuple):
    """What one rank tells."""

    shared: bool
    """Whether all ranks share one order. Then there is one digest, of its beginning."""
    digests: tuple[int, ...]

    @classmethod
    def of_order(cls, indices: Sequence[Any]) -> FirstRows:
        """
        Args:
            indices: those that the order of all ranks begins with.
        """
        return cls(True, (_digest(repr(indices).encode()),))

    @classmethod
    def of_rank(cls, indices: Sequence[Any]) -> FirstRows:
        """
        Args:
            indices: those that this rank's own order begins with.
        """
        names = [repr(index) for index in indices]
        if len(set(names)) < len(names):  # drawn with replacement, so others may draw them, too
            names = [f"{place} {name}" for place, name in enumerate(names[:FEW])]
        # The least digests, so that orders of the same rows are alike.
        return cls(False, tuple(sorted(_digest(name.encode()) for name in names)[:FEW]))

    @classmethod
    def of_stream(cls, samples: Iterable[bytes]) -> FirstRows:
        """
        Args:
            samples: that this rank's stream begins with.
        """
        given = list(samples)
        if len(set(given)) < _DISTINCT:
            return cls(False, ())
        places = enumerate(given)
        return cls(False, tuple(_digest(b"%d " % place + sample) for place, sample in places))


class RowComparison:
    """Compares the first rows of all ranks in one pass."""

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._told: dict[int, FirstRows] = {}
        self.same: tuple[int, ...] = ()
        """Ranks that train on the same rows."""

    @property
    def over(self) -> bool:
        return len(self._told) == self._ranks

    def read(self, messages: Sequence[bytes]) -> list[bytes]:
        """The messages of all ranks without what they tell.

        Raises:
            MismatchError: they do not share one order, as they should.
        """
        bare = []
        for rank, message in enumerate(messages):
            message, suffix = without_suffix(message)
            bare.append(message)
            if suffix and crc32(suffix[:-4]) == int.from_bytes(suffix[-4:], "little"):
                digests = np.frombuffer(suffix[1:-4], _NUMBER).tolist()
                self._told[rank] = FirstRows(suffix[0] == 1, tuple(digests))
        if self.over or any(told.shared for told in self._told.values()):
            self._compare()
        return bare

    def _compare(self) -> None:
        orders = {told.digests: rank for rank, told in self._told.items() if told.shared}
        if len(orders) > 1:
            one, other = sorted(orders.values())[:2]
            raise MismatchError(
                f"the sampler yields another order on rank {other} than on rank {one}, and all "
                "ranks share one order, of which some rows would be trained on twice and others "
                "never: make it a function of (seed, epoch) that is the same on all ranks, such as "
                "by a generator with one seed; or, if it yields each rank's own rows, pass "
                "shard_sampler=False"
            )
        own = {rank: told.digests for rank, told in self._told.items() if not told.shared}
        count = Counter(digest for digests in own.values() for digest in digests)
        self.same = tuple(
            rank
            for rank, digests in sorted(own.items())
            if len(digests) >= _FEWEST
            and sum(count[digest] > 1 for digest in digests) > _SAME * len(digests)
        )


def signed(message: bytes, told: FirstRows) -> bytes:
    """A message with what a rank tells at its end."""
    suffix = bytes([told.shared]) + np.array(told.digests, _NUMBER).tobytes()
    return message + suffix + crc32(suffix).to_bytes(4, "little")


def _digest(data: bytes) -> int:
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "little")
