"""All ranks of a micro-batch must hold the same sharding, and all ranks of a step the same plan.

One small all-gather checks it: each rank sends 8 bytes, a hash of what it holds, or 0 if it holds
nothing. So a rank that differs, or that failed, makes every rank raise before any waits for keys
that never come.
"""

from __future__ import annotations

from hashlib import blake2b

import torch

from evenstep.arrays import Int64Array
from evenstep.context_parallel.collectives import Collectives
from evenstep.errors import MismatchError, PeerError
from evenstep.plan.sharding import Sharding

FAILED = 0


def hash_of(*parts: Int64Array) -> int:
    """Hashes arrays to a number from 1 to 2^63 - 1."""
    digest = blake2b(digest_size=8)
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part.astype("<i8", copy=False).tobytes())
    return (int.from_bytes(digest.digest(), "little") >> 1) or 1


def fingerprint(sharding: Sharding) -> int:
    """`hash_of` a sharding. Its `method` does not count."""
    documents = (sharding.lengths, sharding.document, sharding.start, sharding.end)
    return hash_of(*documents, sharding.offsets)


def compared(
    collectives: Collectives, own: int, device: torch.device
) -> tuple[list[int], list[int]]:
    """Other ranks that have sent `FAILED`, and those that have sent another hash than `own`."""
    sent = collectives.all_gather(torch.tensor([own], dtype=torch.int64, device=device)).tolist()
    failed = [peer for peer, value in enumerate(sent) if value == FAILED]
    others = [peer for peer, value in enumerate(sent) if value != own]
    return [peer for peer in failed if peer != collectives.rank], others


def agree(collectives: Collectives, sharding: Sharding | None, device: torch.device) -> None:
    """Returns if all ranks have sent the same sharding.

    Args:
        sharding: None if this rank could not prepare one.

    Raises:
        PeerError: another rank could not, or died.
        MismatchError: shardings differ.
    """
    own = FAILED if sharding is None else fingerprint(sharding)
    failed, others = compared(collectives, own, device)
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
