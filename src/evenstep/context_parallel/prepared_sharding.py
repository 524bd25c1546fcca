"""What attention needs of a sharding, prepared once per micro-batch and shared by all layers."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import torch

from evenstep.context_parallel.agreement import agree
from evenstep.context_parallel.collectives import Collectives, Group, collectives_of
from evenstep.context_parallel.kernels import Kernel, check_backend, kernel_of, pick_backend
from evenstep.errors import ConfigurationError, EvenstepError
from evenstep.plan.sharding import Sharding

__all__ = ["PreparedSharding", "prepare"]


class PreparedSharding:
    """One rank's part of a sharding, with its index tensors on the device. See `prepare`."""

    def __init__(
        self,
        sharding: Sharding,
        exchange: Collectives,
        *,
        device: torch.device,
        backend: str = "auto",
    ) -> None:
        if exchange.ranks != sharding.ranks:
            raise ConfigurationError(
                f"the group has {exchange.ranks} ranks, and the sequence is cut over "
                f"{sharding.ranks}; pass the context-parallel group, or cut over {exchange.ranks}"
            )
        _check_whole(sharding)
        check_backend(backend, device)
        self.sharding = sharding
        self.exchange = exchange
        self.device = device
        self.backend = backend
        tokens = sharding.tokens
        self.tokens = int(tokens[exchange.rank])
        """Of this rank."""
        self.slot = int(tokens.max())
        """Of the rank that has most."""
        self._kernels: dict[str, Kernel] = {}
        # What training will use, so that no layer waits for it.
        dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        self.kernel(pick_backend(backend, device, dtype, trains=False))

    @property
    def rank(self) -> int:
        return self.exchange.rank

    def kernel(self, name: str) -> Kernel:
        """The back end `name`, made when first asked for."""
        if name not in self._kernels:
            self._kernels[name] = kernel_of(name, self.sharding, self.rank, self.device)
        return self._kernels[name]


def prepare(
    sharding: Sharding,
    group: Group = None,
    *,
    device: torch.device | str,
    backend: str = "auto",
    check: bool = True,
) -> PreparedSharding:
    """Makes ready what `attention` needs in every layer of a micro-batch.

    Args:
        sharding: the plan, the same on all ranks of the group.
        group: the context-parallel ranks: a process group, a device mesh of one dimension
            (``mesh["cp"]``), or None for all processes. The rank within it is the plan's rank.
        device: on which attention will run.
        backend: "flash" (FlashAttention's variable-length kernel, CUDA, half precision), "flex"
            (FlexAttention; on CPU without gradients), "sdpa" (fragment by fragment: the reference,
            for any device and dtype), or "auto" for the first of these that device and dtype allow.
            Ranks need not have the same.
        check: compare the plans of all ranks, which costs one exchange of 8 bytes a rank and, on
            CUDA, a wait for the device. Without it, ranks whose plans differ hang or compute
            nonsense, so leave it out only where a plan's origin rules that out. The same on all
            ranks.

    Raises:
        ConfigurationError: the group is not the one that the sequence was cut over, or the back
            end is unknown or not available.
        MismatchError: ranks have different plans. On all of them.
        PeerError: another rank could not prepare its plan, or died.
    """
    place = _indexed(torch.device(device))
    exchange = collectives_of(group, sharding.ranks)
    try:
        plan = PreparedSharding(sharding, exchange, device=place, backend=backend)
    except Exception:
        if check:
            with suppress(EvenstepError):  # the other ranks' errors matter less than this one's
                agree(exchange, None, place)
        raise
    if check:
        agree(exchange, sharding, place)
    return plan


def _check_whole(sharding: Sharding) -> None:
    """Raises `ConfigurationError` where not every token is in exactly one fragment, as may be with
    a sharding made by hand; attention would be over nonsense."""
    start, end, longest = sharding.start, sharding.end, sharding.lengths[sharding.document]
    wrong = np.flatnonzero((start < 0) | (start >= end) | (end > longest))
    if len(wrong):
        i = int(wrong[0])
        raise ConfigurationError(
            f"fragment {i} of the {sharding.method} plan is [{start[i]}, {end[i]}) of document "
            f"{sharding.document[i]}, which has {longest[i]} tokens; a fragment is at least one "
            "token of its document"
        )
    tokens = int(sharding.begins[-1])
    times = np.bincount(sharding.permutation, minlength=tokens)
    if (times != 1).any():
        place = int((times != 1).argmax())
        raise ConfigurationError(
            f"token {place} of the sequence is in {times[place]} fragments of the "
            f"{sharding.method} plan; every token must be in exactly one"
        )


def _indexed(device: torch.device) -> torch.device:
    """ "cuda" is the current CUDA device, as tensors on it say."""
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return device
