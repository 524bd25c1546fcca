"""All ranks of a micro-batch must hold the same plan: one small exchange that tells.

Each rank sends 8 bytes, a hash of its plan or 0 where it could make none. So a rank whose plan
differs, or that failed, makes every rank raise before any of them waits for keys that never come.
"""

from __future__ import annotations

from hashlib import blake2b

import torch

from evenstep.context_parallel.collectives import Collectives
from evenstep.errors import MismatchError, PeerError
from evenstep.plan.sharding import Sharding

__all__ = ["agree", "fingerprint"]

_FAILED = 0


def fingerprint(sharding: Sharding) -> int:
    """From 1 to 2^63 - 1; equal for equal plans, whatever they are called."""
    digest = blake2b(digest_size=8)
    for part in (
        sharding.lengths,
        sharding.document,
        sharding.start,
        sharding.end,
        sharding.offsets,
    ):
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part.astype("<i8", copy=False).tobytes())
    return (int.from_bytes(digest.digest(), "little") >> 1) or 1


def agree(exchange: Collectives, sharding: Sharding | None, device: torch.device) -> None:
    """Returns where all ranks have sent the same plan.

    Args:
        sharding: None says that this rank could not make its plan.

    Raises:
        PeerError: another rank could not, or died.
        MismatchError: plans differ.
    """
    own = _FAILED if sharding is None else fingerprint(sharding)
    told = exchange.all_gather(torch.tensor([own], dtype=torch.int64, device=device)).tolist()
    failed = [rank for rank, value in enumerate(told) if value == _FAILED and rank != exchange.rank]
    if failed:
        raise PeerError(
            f"context-parallel ranks {failed} could not prepare the plan of this micro-batch; "
            "their own errors say why"
        )
    others = [rank for rank, value in enumerate(told) if value != own]
    if others and sharding is not None:
        raise MismatchError(
            f"context-parallel rank {exchange.rank} has another plan than ranks {others}: its own "
            f"is {sharding.method}, {int(sharding.lengths.sum())} tokens in "
            f"{len(sharding.lengths)} documents; give all ranks of a group the same micro-batch, "
            "cut by the same method"
        )
