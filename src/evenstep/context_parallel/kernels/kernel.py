"""What a back end is: the attention of one rank's fragments, once their keys are at hand.

It is built once per micro-batch from the plan, with its index tensors on the device, and called in
every layer. It knows nothing of other ranks.
"""

from __future__ import annotations

from typing import Protocol

import torch

__all__ = ["Kernel"]


class Kernel(Protocol):
    """Causal attention within documents, of one rank's fragments."""

    rows: torch.Tensor
    """[keys] int64: rows of the buffer of all ranks' keys (see `layout`) that it wants, in its
    order."""
    repeated: bool
    """Whether a row may be wanted twice."""

    def __call__(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float
    ) -> torch.Tensor:
        """
        Args:
            q: [tokens of the rank, query heads, head dim], at least one token.
            k, v: [keys, kv heads, head dim], as `rows` says. Query head h goes with kv head
                ``h // (query heads // kv heads)``.
            scale: of the products, before the softmax.

        Returns:
            Like `q`; differentiable once in all three.
        """
