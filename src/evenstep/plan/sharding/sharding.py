"""`Sharding`: which tokens of a packed sequence each context-parallel rank holds, in which order.

Shardings are compared by how long attention over their fragments takes. A fragment is the tokens
[start, end) of a document. Attention is causal within the document, so query t meets keys 0 to t,
including those in other fragments. The tiles that cover these pairs are counted in exact integers.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from evenstep.arrays import Float64Array, Int64Array, prefix_sums
from evenstep.errors import ConfigurationError
from evenstep.plan.value_checks import check_at_least

TILE = 128
"""Rows and columns that an attention kernel computes together, in FlashAttention's kernels and by
default in FlexAttention's (WLB-LLM, section 5.2)."""


def causal_tiles(start: Int64Array, end: Int64Array, tile: int = TILE) -> Int64Array:
    """[fragments] int64 tiles of `tile` x `tile` that a kernel computes for tokens [start, end).

    Rows are counted from `start`, where a kernel's queries begin; columns from the start of the
    document. A tile with a single pair in it is computed as a whole.

    For tokens [100, 400) and tiles of 128 there are three rows of tiles, which end at tokens 228,
    356 and 400; their columns begin at 0 and take 2, 3 and 4 tiles: 9 in all.
    """
    rows = -(-(end - start) // tile)
    # All rows of tiles except the last end a whole number of tiles after `start`.
    whole = (rows - 1) * -(-start // tile) + rows * (rows - 1) // 2
    return np.where(rows > 0, whole + -(-end // tile), 0)


class KernelLatency(Protocol):
    """A prediction of how long a kernel takes for fragments, in any unit."""

    def __call__(self, queries: Int64Array, keys: Int64Array) -> Float64Array:
        """
        Args:
            queries: [fragments] int64, all at least 1.
            keys: [fragments] int64. A fragment's queries are the last of its keys, and each of them
                meets the keys up to itself.

        Returns:
            [fragments] what each adds to the latency of its rank.
        """


@dataclass(frozen=True, kw_only=True)
class TileLatency:
    """Counts the tiles that a kernel computes, whatever the hardware."""

    tile: int = TILE

    def __post_init__(self) -> None:
        check_at_least(1, tile=self.tile)

    def __call__(self, queries: Int64Array, keys: Int64Array) -> Float64Array:
        return causal_tiles(keys - queries, keys, self.tile).astype(np.float64)


TILES = TileLatency()
"""The default prediction."""


@dataclass(frozen=True, eq=False)
class Sharding:
    """Fragments of a sequence; rank r holds ``offsets[r]`` to ``offsets[r + 1]``, in that order.

    Documents of 5 and 3 tokens, cut per sequence for two ranks, make chunks of 2 tokens, of which
    rank 0 holds the first and last. Its fragments are the tokens [0, 2) of document 0 and [1, 3) of
    document 1. Rank 1 has [2, 5) of document 0, since neighbours are joined, and [0, 1) of document
    1. So ``document=[0, 1, 0, 1]``, ``start=[0, 1, 2, 0]``, ``end=[2, 3, 5, 1]`` and
    ``offsets=[0, 2, 4]``.
    """

    lengths: Int64Array
    """[documents] int64 tokens of each document, in the order of the sequence."""
    document: Int64Array
    """[fragments] int64 the document that each belongs to."""
    start: Int64Array
    """[fragments] int64 the first token of each, counted from the start of its document."""
    end: Int64Array
    """[fragments] int64 the token after the last of each."""
    offsets: Int64Array
    """[ranks + 1] int64, from 0 to the number of fragments."""
    method: str
    """The method that cut it: "per-sequence", "per-document" or "hybrid"."""

    @classmethod
    def of_chunks(
        cls, lengths: Int64Array, bounds: Int64Array, owners: Int64Array, ranks: int, method: str
    ) -> Sharding:
        """Makes a sharding from chunks of the sequence.

        Chunk c is the tokens [bounds[c], bounds[c + 1]) of the sequence, of several documents or of
        part of one, and belongs to rank ``owners[c]``. Chunks of a rank keep their order, and
        neighbours in the same document become one fragment.

        Args:
            lengths: int64 [documents], all at least 1.
            bounds: int64 [chunks + 1], ascending from 0 to the sum of `lengths`; chunks may be
                empty.
            owners: int64 [chunks], below `ranks`.
        """
        begins = prefix_sums(lengths)
        # Every boundary of a chunk or a document is a cut.
        cuts = np.concatenate((begins, bounds))
        cuts.sort()
        cuts = cuts[np.append(True, cuts[1:] > cuts[:-1])]
        first, last = cuts[:-1], cuts[1:]  # [parts] in the sequence
        owner = owners[np.searchsorted(bounds, first, side="right") - 1]
        document = np.searchsorted(begins, first, side="right") - 1
        order = owner.argsort(kind="stable")
        first, last, owner, document = (each[order] for each in (first, last, owner, document))
        # joined: [parts - 1] whether a part continues the fragment of the one before it
        joined = (first[1:] == last[:-1]) & (owner[1:] == owner[:-1])
        joined &= document[1:] == document[:-1]
        new = np.concatenate(([True], ~joined))
        final = np.concatenate((~joined, [True]))
        base = begins[document[new]]
        offsets = np.searchsorted(owner[new], np.arange(ranks + 1), side="left")
        return cls(
            lengths=lengths,
            document=document[new],
            start=first[new] - base,
            end=last[final] - base,
            offsets=offsets.astype(np.int64),
            method=method,
        )

    @property
    def ranks(self) -> int:
        return len(self.offsets) - 1

    @property
    def fragments(self) -> Int64Array:
        """[ranks] number of fragments of each rank."""
        return np.diff(self.offsets)

    @property
    def tokens(self) -> Int64Array:
        """[ranks] number of tokens of each rank."""
        return np.diff(prefix_sums(self.end - self.start)[self.offsets])

    @cached_property
    def begins(self) -> Int64Array:
        """[documents + 1] int64 where documents begin in the sequence, and its length."""
        return prefix_sums(self.lengths)

    @cached_property
    def permutation(self) -> Int64Array:
        """[tokens] int64 positions in the sequence: those of rank 0 in its order, then of rank 1,
        and so on. ``sequence[permutation]``, split by `tokens`, gives each rank its shard."""
        sizes = self.end - self.start
        ends = sizes.cumsum()
        shift = self.begins[self.document] + self.start - (ends - sizes)
        positions: Int64Array = np.arange(int(sizes.sum())) + shift.repeat(sizes)
        return positions

    @cached_property
    def restore(self) -> Int64Array:
        """[tokens] int64 the inverse of `permutation`: indexing the concatenated shards by it gives
        the sequence."""
        restore = np.empty_like(self.permutation)
        restore[self.permutation] = np.arange(len(restore))
        return restore

    def indices(self, rank: int) -> Int64Array:
        """[tokens of the rank] int64 positions in the sequence, in the rank's order.

        Raises:
            ConfigurationError: there is no such rank.
        """
        self.check_rank(rank)
        first, last = self.tokens[:rank].sum(), self.tokens[: rank + 1].sum()
        return self.permutation[first:last]

    def check_rank(self, rank: int) -> None:
        """Raises `ConfigurationError` if there is no such rank."""
        if not 0 <= rank < self.ranks:
            raise ConfigurationError(
                f"rank={rank} must be from 0 to {self.ranks - 1}: the sequence is cut over "
                f"{self.ranks} context-parallel ranks"
            )

    def __getstate__(self) -> dict[str, Any]:
        # It is sent with every shard; the cached properties would add a number for each token.
        return {field.name: getattr(self, field.name) for field in fields(self)}


@dataclass(frozen=True, kw_only=True)
class Fragments:
    """Fragments while a sharding is being made, in no particular order. All columns are int64
    [fragments]."""

    document: Int64Array
    start: Int64Array
    end: Int64Array
    owner: Int64Array
    """The rank that holds each."""

    def sharding(self, lengths: Int64Array, ranks: int, method: str) -> Sharding:
        """The sharding; neighbours on one rank become one fragment."""
        first = (lengths.cumsum() - lengths)[self.document] + self.start
        order = first.argsort()
        bounds = np.append(first[order], lengths.sum())
        return Sharding.of_chunks(lengths, bounds, self.owner[order], ranks, method)


def check_documents(lengths: npt.ArrayLike, ranks: int) -> Int64Array:
    """Checks `lengths` and returns them as int64 [documents].

    Raises:
        ConfigurationError: no documents, one without tokens, or no ranks.
    """
    check_at_least(1, ranks=ranks)
    result = np.asarray(lengths)
    if result.ndim != 1 or not result.size or result.dtype.kind not in "iu":
        raise ConfigurationError(
            f"lengths of shape {result.shape} and type {result.dtype} must be whole numbers "
            "[documents], the tokens of at least one document"
        )
    if result.min() < 1:
        raise ConfigurationError(
            f"document {int(result.argmin())} of the sequence has {result.min()} tokens; "
            "remove documents without tokens"
        )
    return result.astype(np.int64)
