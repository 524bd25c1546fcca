"""How one packed sequence is cut over context-parallel ranks: the canonical plan.

A sequence is documents one after the other. A rank holds an ordered list of fragments, each the
tokens [start, end) of one document, and lays their tokens one after the other. Everything that a
framework asks for (index arrays, boundaries for a kernel, what to give back in which order) is
computed from that list.

Invariant: every token of every document is in exactly one fragment; no fragment is empty; there is
no padding; and no two ranks' numbers of tokens differ by more than one, so that they are equal
wherever the ranks divide the length of the sequence.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from evenstep.arrays import Float64Array, Int64Array
from evenstep.errors import ConfigurationError, InvariantError
from evenstep.plan.argument_checks import check_at_least
from evenstep.plan.sharding.attention_tiles import TILE, causal_pairs, causal_tiles, check_tile
from evenstep.plan.sharding.kernel_latency import KernelLatency

__all__ = ["Sharding", "check_documents"]


@dataclass(frozen=True, eq=False)
class Sharding:
    """Rank r holds fragments ``offsets[r]`` to ``offsets[r + 1]``, in that order."""

    lengths: Int64Array
    """[documents] int64 tokens of each document, in the order of the sequence."""
    document: Int64Array
    """[fragments] int64 the document that each is of."""
    start: Int64Array
    """[fragments] int64 its first token, counted from the start of the document."""
    end: Int64Array
    """[fragments] int64 the token after its last."""
    offsets: Int64Array
    """[ranks + 1] int64, from 0 to the number of fragments."""
    method: str
    """How it was made: "per-sequence", "per-document" or "hybrid"."""

    @classmethod
    def of_chunks(
        cls, lengths: Int64Array, bounds: Int64Array, owners: Int64Array, ranks: int, method: str
    ) -> Sharding:
        """Of chunks of the sequence: chunk c is its tokens [bounds[c], bounds[c + 1]), which may
        hold several documents or part of one, and belongs to rank ``owners[c]``.

        Chunks of a rank keep their order, and neighbours in the same document become one fragment.

        Args:
            lengths: int64 [documents], all from 1.
            bounds: int64 [chunks + 1], ascending from 0 to the sum of `lengths`; chunks may be
                empty.
            owners: int64 [chunks], below `ranks`.
        """
        begins = np.zeros(len(lengths) + 1, np.int64)
        lengths.cumsum(out=begins[1:])
        # Cut at every boundary, of chunks and of documents, that is inside.
        cuts = np.concatenate((begins, bounds))
        cuts.sort()
        cuts = cuts[np.append(True, cuts[1:] > cuts[:-1])]
        first, last = cuts[:-1], cuts[1:]
        owner = owners[np.searchsorted(bounds, first, side="right") - 1]
        document = np.searchsorted(begins, first, side="right") - 1
        order = owner.argsort(kind="stable")
        first, last, owner, document = (each[order] for each in (first, last, owner, document))
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
        """[ranks] fragments of each rank."""
        return np.diff(self.offsets)

    @property
    def tokens(self) -> Int64Array:
        """[ranks] tokens of each rank."""
        return self._by_rank(self.end - self.start)

    @property
    def pairs(self) -> Int64Array:
        """[ranks] causal query-key pairs of each rank's queries."""
        return self._by_rank(causal_pairs(self.start, self.end))

    def tiles(self, tile: int = TILE) -> Int64Array:
        """[ranks] tiles of `tile` x `tile` that an attention kernel computes on each rank.

        Raises:
            ConfigurationError: `tile` is not a whole number from 1.
        """
        check_tile(tile)
        return self._by_rank(causal_tiles(self.start, self.end, tile))

    def latency(self, model: KernelLatency) -> Float64Array:
        """[ranks] float64 what `model` predicts for each rank, in the model's unit."""
        owner = np.arange(self.ranks).repeat(self.fragments)
        total = np.zeros(self.ranks)
        np.add.at(total, owner, model(self.end - self.start, self.end))
        return total

    @cached_property
    def begins(self) -> Int64Array:
        """[documents + 1] int64 where documents begin in the sequence, and its length."""
        begins = np.zeros(len(self.lengths) + 1, np.int64)
        self.lengths.cumsum(out=begins[1:])
        return begins

    @cached_property
    def permutation(self) -> Int64Array:
        """[tokens] int64 places in the sequence: those of rank 0 in its order, of rank 1, and so
        on. ``sequence[permutation]`` cut at the sums of `tokens` gives each rank its shard."""
        sizes = self.end - self.start
        ends = sizes.cumsum()
        shift = self.begins[self.document] + self.start - (ends - sizes)
        places: Int64Array = np.arange(int(ends[-1])) + shift.repeat(sizes)
        return places

    @cached_property
    def restore(self) -> Int64Array:
        """[tokens] int64 the inverse of `permutation`: shards laid one after the other, indexed by
        it, are the sequence again."""
        restore = np.empty_like(self.permutation)
        restore[self.permutation] = np.arange(len(restore))
        return restore

    def indices(self, rank: int) -> Int64Array:
        """[tokens of the rank] int64 their places in the sequence, in the rank's order.

        Raises:
            ConfigurationError: there is no such rank.
        """
        self.check_rank(rank)
        first, last = self.tokens[:rank].sum(), self.tokens[: rank + 1].sum()
        return self.permutation[first:last]

    def check_rank(self, rank: int) -> None:
        """Raises `ConfigurationError` where there is no such rank."""
        if not 0 <= rank < self.ranks:
            raise ConfigurationError(
                f"rank={rank} must be from 0 to {self.ranks - 1}: the sequence is cut over "
                f"{self.ranks} context-parallel ranks"
            )

    def check(self) -> None:
        """Raises `InvariantError` where the invariant that the module states does not hold."""
        if (self.end <= self.start).any():
            raise InvariantError(f"a fragment of the {self.method} plan is empty")
        order = np.lexsort((self.start, self.document))
        document, start, end = self.document[order], self.start[order], self.end[order]
        whole = np.repeat(self.begins[:-1], np.bincount(document, minlength=len(self.lengths)))
        first, last = whole + start, whole + end
        if first[0] or last[-1] != self.begins[-1] or (first[1:] != last[:-1]).any():
            raise InvariantError(f"the {self.method} plan does not hold every token exactly once")
        if np.ptp(self.tokens) > 1:
            raise InvariantError(
                f"the {self.method} plan gives ranks {self.tokens.tolist()} tokens, which differ "
                "by more than one"
            )

    def __getstate__(self) -> dict[str, Any]:
        # It travels with every shard, and what was computed from it is a number for each token.
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def _by_rank(self, values: Int64Array) -> Int64Array:
        total = np.zeros(len(values) + 1, np.int64)
        values.cumsum(out=total[1:])
        return np.diff(total[self.offsets])


def check_documents(lengths: npt.ArrayLike, ranks: int) -> Int64Array:
    """`lengths` as int64 [documents], checked.

    Raises:
        ConfigurationError: no documents, one without tokens, or no ranks.
    """
    check_at_least(1, ranks=ranks)
    result = np.asarray(lengths)
    if result.ndim != 1 or not result.size or result.dtype.kind not in "iu":
        raise ConfigurationError(
            f"lengths of shape {result.shape} and type {result.dtype} must be whole numbers of "
            "tokens [documents], of at least one document"
        )
    if result.min() < 1:
        raise ConfigurationError(
            f"document {int(result.argmin())} of the sequence has {result.min()} tokens; "
            "leave out documents without tokens"
        )
    return result.astype(np.int64)
