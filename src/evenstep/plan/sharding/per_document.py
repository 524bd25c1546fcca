"""Per-document sharding without padding: every document is cut into 2C chunks.

Rank r of C holds chunks r and 2C - 1 - r of every document, as in `per_sequence` of the sequence
(WLB-LLM, section 5.1). A document of L tokens has L mod 2C more than 2C equal chunks. Each of these
makes one chunk longer by a token, chunk after chunk, and the next document continues where the last
one stopped. So chunks stay contiguous, whereas dealing out single tokens would make a fragment of
each; all ranks have equally many tokens if C divides the sequence; and their costs differ by less
than those of single tokens.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from evenstep.plan.sharding.per_sequence import head_tail
from evenstep.plan.sharding.sharding import Sharding, check_documents, prefix_sums

__all__ = ["shard_per_document"]


def shard_per_document(lengths: npt.ArrayLike, ranks: int) -> Sharding:
    """Gives each rank two chunks of every document, none of them padded.

    Documents of 5 and 6 tokens on two ranks are cut into chunks of 2, 1, 1, 1 and 1, 2, 2, 1
    tokens: the token left over in the first lengthens chunk 0, the two in the second chunks 1
    and 2. Chunks 0 and 3 go to rank 0, chunks 1 and 2 to rank 1: 5 and 6 tokens.

    Args:
        lengths: [documents] tokens of each, in the order of the sequence. Documents of fewer
            than 2 x `ranks` tokens lie on some of the ranks only.
        ranks: context-parallel ranks.

    Raises:
        ConfigurationError: no documents, one without tokens, or no ranks.
    """
    documents = check_documents(lengths, ranks)
    chunks = 2 * ranks
    size, left = np.divmod(documents, chunks)  # [documents]
    first = (left.cumsum() - left) % chunks  # [documents] the first chunk that is longer
    longer = (np.arange(chunks) - first[:, None]) % chunks < left[:, None]  # [documents, chunks]
    bounds = prefix_sums((size[:, None] + longer).ravel())
    owners = np.tile(head_tail(ranks), len(documents))
    return Sharding.of_chunks(documents, bounds, owners, ranks, "per-document")
