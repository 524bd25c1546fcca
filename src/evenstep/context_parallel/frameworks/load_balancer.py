"""A `Sharding` for PyTorch's context parallelism, which asks an object how to permute a sequence.

It permutes the sequence so that the ranks' tokens follow each other, and cuts the result into equal
parts: so all ranks must have equally many tokens.
"""

from __future__ import annotations

import numpy as np
import torch

from evenstep.errors import ConfigurationError
from evenstep.plan.sharding import Sharding


class LoadBalancer:
    """A `Sharding` as the ``load_balancer`` of functions in
    ``torch.distributed.tensor.experimental``.

    It has the method that they call, and no PyTorch class as a base, since those are prototypes
    with private names. If a release requires its own class, register this one with that abstract
    base class: ``TheirClass.register(LoadBalancer)``.
    """

    def __init__(self, sharding: Sharding, device: torch.device | str = "cpu") -> None:
        """
        Args:
            sharding: of any method.
            device: device of the tensors that will be cut.

        Raises:
            ConfigurationError: ranks have different numbers of tokens.
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
        """int64 [1, T]: positions in the sequence in the order of the ranks, or the inverse."""
        return self._restore if restore else self._indices
