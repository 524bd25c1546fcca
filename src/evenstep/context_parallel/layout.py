"""Where the keys lie that one rank needs: index arrays from a `Sharding`, in NumPy alone.

The keys of all ranks arrive in one buffer, rank after rank, in slots of equal size: as many rows as
the rank with most tokens has.

`varlen_arguments` makes a rank's attention one call of a variable-length kernel. To the kernel
every fragment [start, end) of a document is one sequence: end - start queries, and as keys the
document's first `end` tokens. The causal mask is aligned at the bottom right, as in FlashAttention
where there are fewer queries than keys: the last query meets all keys, the one before it all except
one. That is exactly attention within the document, for any sharding. The keys of a document are
repeated for each of its fragments on the rank, as each fragment must begin a sequence of the
kernel.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from evenstep.arrays import Int64Array, prefix_sums
from evenstep.plan.sharding.sharding import Sharding


def buffer_rows(sharding: Sharding, positions: Int64Array) -> Int64Array:
    """Rows of the buffer that hold the tokens at `positions` of the sequence."""
    tokens = sharding.tokens
    # [ranks] rows of padding in the slots before each rank's.
    padding = np.arange(sharding.ranks) * tokens.max() - prefix_sums(tokens)[:-1]
    unpadded = sharding.restore[positions]
    rows: Int64Array = unpadded + padding.repeat(tokens)[unpadded]
    return rows


Int32Array = npt.NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class VarlenArguments:
    """Arguments of the kernel. Its queries are the rank's tokens in their order."""

    cu_seqlens_q: Int32Array
    """[fragments + 1] int32: where each fragment's queries begin among the rank's tokens."""
    cu_seqlens_k: Int32Array
    """[fragments + 1] int32: where each fragment's keys begin among `keys`."""
    max_seqlen_q: int
    """Most queries of a fragment; 0 on a rank without tokens."""
    max_seqlen_k: int
    """Most keys of a fragment; 0 on a rank without tokens."""
    keys: Int64Array
    """[cu_seqlens_k[-1]] int64: positions of keys and values in the sequence."""

    def gathered(self, sharding: Sharding) -> Int64Array:
        """[cu_seqlens_k[-1]] int64: the same positions in the result of an all-gather, the ranks'
        tokens one after the other, so that it need not be reordered first."""
        return sharding.restore[self.keys]


def varlen_arguments(sharding: Sharding, rank: int) -> VarlenArguments:
    """Boundaries and keys of `rank`, for a kernel called with ``causal=True``.

    If documents have 5 and 3 tokens, and the rank holds [0, 2) of the first and [1, 3) of the
    second, then ``cu_seqlens_q=[0, 2, 4]``, ``cu_seqlens_k=[0, 2, 5]``, ``keys=[0, 1, 5, 6, 7]``.

    Raises:
        ConfigurationError: there is no such rank.
    """
    sharding.check_rank(rank)
    own = slice(sharding.offsets[rank], sharding.offsets[rank + 1])
    queries, keys = (sharding.end - sharding.start)[own], sharding.end[own]
    queries_until, keys_until = prefix_sums(queries), prefix_sums(keys)  # [fragments + 1]
    total = int(keys_until[-1])
    shift = sharding.begins[sharding.document[own]] - keys_until[:-1]
    return VarlenArguments(
        cu_seqlens_q=queries_until.astype(np.int32),
        cu_seqlens_k=keys_until.astype(np.int32),
        max_seqlen_q=int(queries.max(initial=0)),
        max_seqlen_k=int(keys.max(initial=0)),
        keys=np.arange(total) + shift.repeat(keys),
    )
