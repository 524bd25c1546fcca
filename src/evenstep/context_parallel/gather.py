"""Keys and values of all ranks to each rank, and their gradients back to where they came from.

Forward is one all-gather and backward one reduce-scatter, of keys and values side by side. Shards
may differ in tokens, and a rank may have none: all send as many rows as the longest shard has, and
the rows that pad the others are never read.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.function import once_differentiable

from evenstep.context_parallel.collectives import Collectives
from evenstep.context_parallel.kernels import Kernel


def gather_keys_values(
    k: torch.Tensor, v: torch.Tensor, collectives: Collectives, kernel: Kernel, slot: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gathers the keys and values that this rank's kernel takes.

    Args:
        k, v: [tokens of this rank, kv heads, head dim].
        slot: tokens of the rank that has most: in the gathered buffer the rows of rank r begin at
            ``r * slot``.

    Returns:
        k and v [keys, kv heads, head dim]. Backward, which every rank must reach, adds the
        gradients of a rank in float32 at least if `kernel.repeated`, and those of all ranks in the
        dtype of `k`.

    Raises:
        PeerError: another rank died, here or in backward.
    """
    gathered: tuple[torch.Tensor, torch.Tensor] = _Gather.apply(  # type: ignore[no-untyped-call]
        k, v, collectives, kernel, slot
    )
    return gathered


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        k: torch.Tensor,
        v: torch.Tensor,
        collectives: Collectives,
        kernel: Kernel,
        slot: int,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        ctx.save_for_backward(kernel.rows)
        ctx.collectives, ctx.slot, ctx.repeated = collectives, slot, kernel.repeated
        ctx.shape = k.shape
        own = torch.cat((k, v), dim=1)
        if len(own) < slot:
            own = torch.cat((own, own.new_zeros(slot - len(own), *own.shape[1:])))
        gathered = collectives.all_gather(own)  # [ranks x slot, 2 x kv heads, head dim]
        heads = k.shape[1]
        keys, values = gathered[:, :heads], gathered[:, heads:]
        return keys.index_select(0, kernel.rows), values.index_select(0, kernel.rows)

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad_k: torch.Tensor, grad_v: torch.Tensor
    ) -> tuple[torch.Tensor | None, ...]:
        (rows,) = ctx.saved_tensors
        tokens, heads, _ = ctx.shape
        grad = torch.cat((grad_k, grad_v), dim=1)
        dtype = grad.dtype
        if ctx.repeated:
            grad = grad.to(torch.promote_types(dtype, torch.float32))
        of_all = grad.new_zeros(ctx.collectives.ranks * ctx.slot, *grad.shape[1:])
        of_all.index_add_(0, rows, grad)
        own = ctx.collectives.reduce_scatter(of_all.to(dtype))[:tokens]
        return own[:, :heads], own[:, heads:], None, None, None
