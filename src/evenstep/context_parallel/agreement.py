"""All ranks of a micro-batch must hold the same sharding.

One small all-gather checks it: each rank sends 8 bytes, a hash of what it holds, or 0 if it holds
nothing. So a rank that differs, or that failed, makes every rank raise before any waits for keys
that never come.
"""

from __future__ import annotations

from hashlib import blake2b

import torch

from evenstep.context_parallel.collectives import Collectives
from evenstep.errors import MismatchError, PeerError
from evenstep.plan.sharding import Sharding

FAILED = 0


def fingerprint(sharding: Sharding) -> int:
    """Hashes a sharding to a number from 1 to 2^63 - 1. Its `method` does not count."""
    digest = blake2b(digest_size=8)
    documents = (sharding.lengths, sharding.document, sharding.start, sharding.end)
    for part in (*documents, sharding.offsets):
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part.astype("<i8", copy=False).tobytes())
    return (int.from_bytes(digest.digest(), "little") >> 1) or 1


def agree(collectives: Collectives, sharding: Sharding | None, device: torch.device) -> None:
    """Returns if all ranks have sent the same sharding.

    Args:
        sharding: None if this rank could not prepare one.

    Raises:
        PeerError: another rank could not, or died.
        MismatchError: shardings differ.
    """
    own = FAILED if sharding is None else fingerprint(sharding)
    sent = collectives.all_gather(torch.tensor([own], dtype=torch.int64, device=device)).tolist()
    failed = [
        peer for peer, value in enumerate(sent) if value == FAILED and peer != collectives.rank
    ]
    others = [peer for peer, value in enumerate(sent) if value != own]
    if failed:
        raise PeerError(
            f"context-parallel ranks {failed} could not prepare the sharding of this micro-batch; "
            "see their own errors"
        )
    if others and sharding is not None:
        raise MismatchError(
            f"context-parallel rank {collectives.rank} has another sharding than ranks {others}: "
            f"its own is {sharding.method}, {int(sharding.lengths.sum())} tokens in "
            f"{len(sharding.lengths)} documents; give all ranks of a group the same micro-batch, "
            "cut by the same method"
        )
