"""Per-document sharding without padding: every document is cut into 2C chunks.

Rank r of C holds chunks r and 2C - 1 - r of every document, as `per_sequence` does of the sequence
(WLB-LLM, section 5.1). A document of L tokens has L mod 2C more than 2C equal chunks; each of these
makes one chunk longer by a token, chunk after chunk, and the next document goes on where the last
one stopped. So chunks stay contiguous, where dealing single tokens out would make a fragment of
each; all ranks have equally many tokens where C divides the sequence; and their work differs by
less than what single tokens are worth.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from evenstep.plan.sharding.per_sequence import head_tail
from evenstep.plan.sharding.sharding import Sharding, check_documents

__all__ = ["shard_per_document"]


def shard_per_document(lengths: npt.ArrayLike, ranks: int) -> Sharding:
    """Two chunks of every document to each rank, none of them padded.

    Args:
        lengths: [documents] tokens of each, in the order of the sequence. Documents of fewer
            than 2 x `ranks` tokens lie on some of the ranks only.
        ranks: context-parallel ranks.

    Raises:
        ConfigurationError: no documents, one without tokens, or no ranks.
    """
    documents = check_documents(lengths, ranks)
    chunks = 2 * ranks
    size, left = np.divmod(documents, chunks)
    cursor = (left.cumsum() - left) % chunks
    longer = (np.arange(chunks) - cursor[:, None]) % chunks < left[:, None]
    sizes = (size[:, None] + longer).ravel()
    bounds = np.zeros(len(sizes) + 1, np.int64)
    sizes.cumsum(out=bounds[1:])
    owners = np.tile(head_tail(ranks), len(documents))
    return Sharding.of_chunks(documents, bounds, owners, ranks, "per-document")
