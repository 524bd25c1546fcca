"""`Kernel`, the interface of back ends: attention of one rank's fragments, once keys are gathered.

A kernel is built once per micro-batch from the sharding, with its index tensors on the device, and
called in every layer. It knows nothing of other ranks.
"""

from __future__ import annotations

from typing import Protocol

import torch

__all__ = ["Kernel"]


class Kernel(Protocol):
    """Causal attention within documents, for one rank's fragments."""

    rows: torch.Tensor
    """[keys] int64: rows of the buffer of all ranks' keys (see `layout`) that it takes, in its
    order."""
    repeated: bool
    """Whether it may take a row twice."""

    def __call__(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float
    ) -> torch.Tensor:
        """
        Args:
            q: [tokens of the rank, query heads, head dim], at least one token.
            k, v: [keys, kv heads, head dim], in the order of `rows`. Query head h uses kv head
                ``h // (query heads // kv heads)``.
            scale: factor of the products, before the softmax.

        Returns:
            Like `q`; differentiable once in all three.
        """
