"""Hybrid sharding: nearly all documents stay whole, and few cuts make tokens and cost equal.

The more fragments there are, the more attention wastes, since a kernel computes whole tiles.
Per-document sharding makes 2C fragments of every document and balances pairs, of which the slowest
rank then computes many that are masked. Equal shares of both tokens and tiles take some 3C cuts for
the whole sequence, most of them between tiles (`equal_shares`, `exact_tokens`). WLB-LLM has no such
method.
"""

from __future__ import annotations

import numpy.typing as npt

from evenstep.plan.sharding.attention_tiles import TILE, causal_tiles
from evenstep.plan.sharding.equal_shares import equal_shares
from evenstep.plan.sharding.exact_tokens import exact_tokens
from evenstep.plan.sharding.kernel_latency import TILES, KernelLatency, TileLatency
from evenstep.plan.sharding.sharding import Sharding, check_documents


def shard_equally(
    lengths: npt.ArrayLike, ranks: int, *, latency: KernelLatency = TILES
) -> Sharding:
    """Shards as `shard_hybrid` does, without comparing with the other methods.

    Cost is counted in tiles, and a tile of a document costs what `latency` predicts for the whole
    document, divided by its tiles.
    """
    documents = check_documents(lengths, ranks)
    tile = latency.tile if isinstance(latency, TileLatency) else TILE
    per_tile = latency(documents, documents) / causal_tiles(0 * documents, documents, tile)
    shares = equal_shares(documents, ranks, per_tile, tile)
    return exact_tokens(shares, ranks, tile).sharding(documents, ranks, "hybrid")
