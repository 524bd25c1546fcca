"""A rank's attention as one call of a variable-length kernel, its keys and values gathered.

Every fragment [start, end) of a document is a sequence of its own for the kernel: end - start
queries, and as keys the document's first `end` tokens. The causal mask is aligned bottom right, as
FlashAttention does where there are fewer queries than keys: the last query meets all keys, the one
before it all but one. That is exactly attention within the document, for any plan.

Keys are laid out once for all fragments: those of a document are given for each of its fragments
on the rank again, as each must begin a sequence of the kernel.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from evenstep.arrays import Int64Array
from evenstep.errors import ConfigurationError
from evenstep.plan.sharding.sharding import Sharding

__all__ = ["VarlenArguments", "varlen_arguments"]

Int32Array = npt.NDArray[np.int32]

_LIMIT = 2**31 - 1  # what boundaries can be


@dataclass(frozen=True, eq=False)
class VarlenArguments:
    """The queries are the rank's tokens in its own order, as they are."""

    cu_seqlens_q: Int32Array
    """[fragments + 1] int32: where each fragment's queries begin among the rank's tokens."""
    cu_seqlens_k: Int32Array
    """[fragments + 1] int32: where each fragment's keys begin among `keys`."""
    max_seqlen_q: int
    """Most queries of a fragment; 0 on a rank without tokens."""
    max_seqlen_k: int
    """Most keys of a fragment; 0 on a rank without tokens."""
    keys: Int64Array
    """[cu_seqlens_k[-1]] int64: the keys' and values' places in the sequence."""

    def gathered(self, sharding: Sharding) -> Int64Array:
        """[cu_seqlens_k[-1]] int64: the same places in what an all-gather makes, which is the
        ranks' tokens one after the other, so that it need not be put in order first."""
        return sharding.restore[self.keys]


def varlen_arguments(sharding: Sharding, rank: int) -> VarlenArguments:
    """Boundaries and keys of `rank`, for a kernel that is told ``causal=True``.

    Raises:
        ConfigurationError: there is no such rank, or its fragments have more than 2**31 - 1 keys.
    """
    sharding.check_rank(rank)
    own = slice(sharding.offsets[rank], sharding.offsets[rank + 1])
    queries, keys = (sharding.end - sharding.start)[own], sharding.end[own]
    queries_until, keys_until = _sums(queries), _sums(keys)
    total = int(keys_until[-1])
    if total > _LIMIT:
        raise ConfigurationError(
            f"rank {rank} has {total:,} keys in {len(keys):,} fragments, and boundaries are int32, "
            f"at most {_LIMIT:,}; pack fewer tokens, or cut documents into fewer fragments"
        )
    shift = sharding.begins[sharding.document[own]] - keys_until[:-1]
    return VarlenArguments(
        cu_seqlens_q=queries_until.astype(np.int32),
        cu_seqlens_k=keys_until.astype(np.int32),
        max_seqlen_q=int(queries.max(initial=0)),
        max_seqlen_k=int(keys.max(initial=0)),
        keys=np.arange(total) + shift.repeat(keys),
    )


def _sums(values: Int64Array) -> Int64Array:
    sums = np.zeros(len(values) + 1, np.int64)
    values.cumsum(out=sums[1:])
    return sums
