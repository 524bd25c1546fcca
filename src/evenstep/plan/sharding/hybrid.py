"""Hybrid sharding: nearly all documents whole, a few of the cuts that work and tokens ask for.

What attention wastes grows with the fragments, since a kernel computes whole tiles: per-document
sharding makes 2C fragments of every document, and balances pairs of which the slowest rank then
computes many for nothing. Equal shares of both tokens and tiles take some 3C cuts for the whole
sequence, most of them between tiles (`equal_shares`, `exact_tokens`). WLB-LLM has no such plan.
"""

from __future__ import annotations

from dataclasses import replace

import numpy.typing as npt

from evenstep.plan.sharding.attention_tiles import TILE, causal_tiles
from evenstep.plan.sharding.equal_shares import equal_shares
from evenstep.plan.sharding.exact_tokens import exact_tokens
from evenstep.plan.sharding.fastest import fastest
from evenstep.plan.sharding.kernel_latency import TILES, KernelLatency, TileLatency
from evenstep.plan.sharding.per_document import shard_per_document
from evenstep.plan.sharding.per_sequence import shard_per_sequence
from evenstep.plan.sharding.sharding import Sharding, check_documents

__all__ = ["shard_equally", "shard_hybrid"]


def shard_hybrid(lengths: npt.ArrayLike, ranks: int, *, latency: KernelLatency = TILES) -> Sharding:
    """Equal shares of tokens and work, in few fragments.

    Where per-sequence or per-document sharding has a faster slowest rank, as can be of sequences
    of few tokens, the plan is theirs; it is called "hybrid" all the same.

    Args:
        lengths: [documents] tokens of each, in the order of the sequence.
        ranks: context-parallel ranks.
        latency: what decides.

    Raises:
        ConfigurationError: no documents, one without tokens, or no ranks; or a latency that is not
            a number.
    """
    documents = check_documents(lengths, ranks)
    others = (shard_per_sequence(documents, ranks), shard_per_document(documents, ranks))
    plans = [shard_equally(documents, ranks, latency=latency)]
    plans += [replace(other, method="hybrid") for other in others]
    return fastest(plans, latency)


def shard_equally(
    lengths: npt.ArrayLike, ranks: int, *, latency: KernelLatency = TILES
) -> Sharding:
    """As `shard_hybrid`, whether or not another plan is faster.

    Work is tiles, and a tile of a document is worth what `latency` predicts of the whole document,
    shared among its tiles.
    """
    documents = check_documents(lengths, ranks)
    tile = latency.tile if isinstance(latency, TileLatency) else TILE
    rates = latency(documents, documents) / causal_tiles(0 * documents, documents, tile)
    shares = equal_shares(documents, ranks, rates, tile)
    return exact_tokens(shares, ranks, tile).sharding(documents, ranks, "hybrid")
