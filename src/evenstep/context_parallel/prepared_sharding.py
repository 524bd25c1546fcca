"""A sharding made ready for attention, once per micro-batch, and shared by all layers.

All ranks of a micro-batch must hold the same sharding. One small all-gather checks it: each rank
sends 8 bytes, a hash of what it holds, or 0 if it holds nothing. So a rank that differs, or that
failed, makes every rank raise before any waits for keys that never come.
"""

from __future__ import annotations

from contextlib import suppress
from hashlib import blake2b

import torch

from evenstep.context_parallel.collectives import Collectives, Group, collectives_of
from evenstep.context_parallel.kernels import KERNELS, Kernel, check_backend, pick_backend
from evenstep.errors import ConfigurationError, EvenstepError, MismatchError, PeerError
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
    others = [peer for peer, value in enumerate(sent) if value != own]
    failed = [peer for peer in others if sent[peer] == FAILED]
    if failed:
        raise PeerError(f"context-parallel ranks {failed} could not prepare; see their own errors")
    if others and sharding is not None:
        raise MismatchError(
            f"context-parallel rank {collectives.rank} has another sharding than ranks {others}: "
            f"its own is {sharding.method}, of {len(sharding.lengths)} documents; give all ranks "
            "of a group the same micro-batch, cut by the same method"
        )


class PreparedSharding:
    """One rank's part of a sharding, with its index tensors on the device. See `prepare`."""

    def __init__(
        self,
        sharding: Sharding,
        collectives: Collectives,
        *,
        device: torch.device,
        backend: str = "auto",
    ) -> None:
        if collectives.ranks != sharding.ranks:
            raise ConfigurationError(
                f"the group has {collectives.ranks} ranks, and the sequence is cut over "
                f"{sharding.ranks}; pass the group that it is cut over"
            )
        if device.type == "cuda" and device.index is None:  # as tensors say where they are
            device = torch.device("cuda", torch.cuda.current_device())
        check_backend(backend, device)
        self.sharding = sharding
        self.collectives = collectives
        self.device = device
        self.backend = backend
        tokens = sharding.tokens
        self.tokens = int(tokens[collectives.rank])
        """Tokens of this rank."""
        self.slot = int(tokens.max())
        """Tokens of the rank that has most."""
        self._kernels: dict[str, Kernel] = {}
        # Builds the kernel that training will use, so that no layer waits for it.
        dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        self.kernel(pick_backend(backend, device, dtype))

    @property
    def rank(self) -> int:
        return self.collectives.rank

    def kernel(self, name: str) -> Kernel:
        """The back end `name`, built on first use."""
        if name not in self._kernels:
            self._kernels[name] = KERNELS[name](self.sharding, self.rank, self.device)
        return self._kernels[name]


def prepare(
    sharding: Sharding,
    group: Group = None,
    *,
    device: torch.device | str,
    backend: str = "auto",
    check: bool = True,
) -> PreparedSharding:
    """Prepares a sharding for `attention` in every layer of a micro-batch.

    Args:
        sharding: the same on all ranks of the group.
        group: the context-parallel ranks: a process group, a device mesh of one dimension
            (``mesh["cp"]``), or None for all processes. The rank within it is the sharding's rank.
        device: the device on which attention will run.
        backend: "flash" (FlashAttention's variable-length kernel, CUDA, half precision), "sdpa"
            (fragment by fragment: the reference, for any device and dtype), or "auto" for the first
            of these that device and dtype allow.
            Ranks need not have the same.
        check: compare the shardings of all ranks, which costs one all-gather of 8 bytes a rank
            and, on CUDA, a wait for the device. Without it, ranks whose shardings differ hang or
            compute nonsense, so disable it only if they cannot differ. The same on all ranks.

    Raises:
        ConfigurationError: the group is not the one that the sequence was cut over, or the back
            end is unknown or not available.
        MismatchError: ranks have different shardings. On all of them.
        PeerError: another rank could not prepare its sharding, or died.
    """
    where = torch.device(device)
    collectives = collectives_of(group, sharding.ranks)
    try:
        prepared = PreparedSharding(sharding, collectives, device=where, backend=backend)
    except Exception:
        if check:
            with suppress(EvenstepError):  # the other ranks' errors matter less than this one's
                agree(collectives, None, where)
        raise
    if check:
        agree(collectives, sharding, where)
    return prepared
