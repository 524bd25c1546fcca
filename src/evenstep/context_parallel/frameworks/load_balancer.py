"""The object that PyTorch's context parallelism asks how to rearrange a sequence.

It asks for a permutation that lays the ranks' tokens one after the other, and cuts what comes out
into equal parts: so all ranks must have equally many tokens.
"""

from __future__ import annotations

import numpy as np
import torch

from evenstep.errors import ConfigurationError
from evenstep.plan.sharding import Sharding

__all__ = ["LoadBalancer"]


class LoadBalancer:
    """A `Sharding` as the ``load_balancer`` of functions in
    ``torch.distributed.tensor.experimental``.

    It has the method that they call, and none of PyTorch's classes as a base, since those are
    prototypes with private names. Where a release asks for its own class, register this one with
    it: it is an abstract base class, so ``TheirClass.register(LoadBalancer)``.
    """

    def __init__(self, sharding: Sharding, device: torch.device | str = "cpu") -> None:
        """
        Args:
            sharding: any plan.
            device: where the tensors lie that will be cut.

        Raises:
            ConfigurationError: ranks differ in their tokens.
        """
        if np.ptp(sharding.tokens):
            tokens = int(sharding.tokens.sum())
            raise ConfigurationError(
                f"ranks have {sharding.tokens.tolist()} tokens, and PyTorch's context parallelism "
                f"cuts the {tokens:,} tokens of the row into {sharding.ranks} equal parts; use "
                f"PackCollator(pad_to_multiple_of={sharding.ranks})"
            )
        self.sharding = sharding
        self._indices = torch.from_numpy(sharding.permutation)[None].to(device)
        self._restore = torch.from_numpy(sharding.restore)[None].to(device)

    def _generate_indices(self, restore: bool = False) -> torch.Tensor:
        """int64 [1, T]: places in the sequence in the order of the ranks, or its inverse."""
        return self._restore if restore else self._indices
