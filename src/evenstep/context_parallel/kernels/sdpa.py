"""PyTorch's scaled dot-product attention, fragment by fragment: the reference, which runs anywhere.

A fragment that begins its document is plainly causal. Any other needs a mask, whose rows are its
queries and whose columns are all keys up to its end, so it is cut into blocks of rows whose masks
have at most `MASK` entries. Backward computes each block again instead of keeping its mask, so that
memory grows with tokens and not with pairs. That costs one more forward pass, which the other back
ends do not need.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch.autograd.function import once_differentiable
from torch.nn.functional import scaled_dot_product_attention

from evenstep.context_parallel.kernels.layout import buffer_rows, varlen_arguments
from evenstep.plan.sharding import Sharding

MASK = 1 << 22
"""Entries of the largest mask: 16 MiB in float32."""


@dataclass(frozen=True)
class _Block:
    """Some rows of a fragment, with the keys up to the last of them."""

    queries: slice
    keys: slice
    masked: bool

    def mask(self, device: torch.device) -> torch.Tensor | None:
        if not self.masked:
            return None
        rows = self.queries.stop - self.queries.start
        columns = self.keys.stop - self.keys.start
        return torch.ones(rows, columns, dtype=torch.bool, device=device).tril(columns - rows)


class SdpaKernel:
    """See `evenstep.context_parallel.kernels.Kernel`."""

    def __init__(self, sharding: Sharding, rank: int, device: torch.device) -> None:
        varlen = varlen_arguments(sharding, rank)
        self.rows = torch.from_numpy(buffer_rows(sharding, varlen.keys)).to(device)
        queries, keys = varlen.cu_seqlens_q.tolist(), varlen.cu_seqlens_k.tolist()
        self._blocks = [
            block
            for (start, stop), (first, end) in zip(pairwise(queries), pairwise(keys))
            for block in _cut(first, end - first, start, stop)
        ]

    def __call__(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float
    ) -> torch.Tensor:
        out: torch.Tensor = _BlockByBlock.apply(  # type: ignore[no-untyped-call]
            q, k, v, self._blocks, scale
        )
        return out


class _BlockByBlock(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        blocks: list[_Block],
        scale: float,
    ) -> torch.Tensor:
        out = torch.empty_like(q)
        for block in blocks:
            out[block.queries] = _attend(
                q[block.queries], k[block.keys], v[block.keys], block, scale
            )
        ctx.save_for_backward(q, k, v)
        ctx.blocks, ctx.scale = blocks, scale
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_out: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        q, k, v = ctx.saved_tensors
        grad_q = torch.empty_like(q)
        # Keys take part in many blocks: their gradients are summed in float32 at least.
        exact = torch.promote_types(k.dtype, torch.float32)
        grad_k, grad_v = torch.zeros_like(k, dtype=exact), torch.zeros_like(v, dtype=exact)
        for block in ctx.blocks:
            queries, keys, values = (
                part.detach().requires_grad_()
                for part in (q[block.queries], k[block.keys], v[block.keys])
            )
            with torch.enable_grad():
                out = _attend(queries, keys, values, block, ctx.scale)
            grads = torch.autograd.grad(out, (queries, keys, values), grad_out[block.queries])
            grad_q[block.queries] = grads[0]
            grad_k[block.keys] += grads[1]
            grad_v[block.keys] += grads[2]
        return grad_q, grad_k.to(k.dtype), grad_v.to(v.dtype), None, None


def _attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, block: _Block, scale: float
) -> torch.Tensor:
    heads, kv_heads = q.shape[1], k.shape[1]
    # Query heads that share a kv head become the batch dimension, so that keys and values are not
    # copied for each of them: [kv heads, heads of each, tokens, head dim].
    grouped = q.transpose(0, 1).reshape(kv_heads, heads // kv_heads, *q.shape[::2])
    keys, values = (x.transpose(0, 1)[:, None].expand(-1, grouped.shape[1], -1, -1) for x in (k, v))
    mask = block.mask(q.device)
    out = scaled_dot_product_attention(
        grouped, keys, values, attn_mask=mask, is_causal=mask is None, scale=scale
    )
    return out.flatten(0, 1).transpose(0, 1)


def _cut(first: int, keys: int, start: int, stop: int) -> Iterator[_Block]:
    """Cuts the fragment whose `keys` begin at `first` and whose queries are [start, stop)."""
    if stop - start == keys:
        yield _Block(slice(start, stop), slice(first, first + keys), masked=False)
        return
    rows = max(1, MASK // keys)
    before = keys - (stop - start)
    for begin in range(start, stop, rows):
        end = min(begin + rows, stop)
        yield _Block(slice(begin, end), slice(first, first + before + end - start), masked=True)
