"""Context-parallel attention: every rank has the queries of its fragments and meets all keys.

Keys and values are gathered from all ranks, side by side, in one all-gather. Then each fragment,
tokens [start, end) of a document, attends causally with its queries to the document's keys up to
`end`. That is what one process would compute for these queries, whatever the sharding. Every rank
has a part of the gradients of keys and values; one reduce-scatter sums them on the rank that the
keys and values came from (WLB-LLM, section 5).

Shards may differ in tokens, and a rank may have none: all send as many rows as the longest shard
has, and the rows that pad the others are never read.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.function import once_differentiable

from evenstep.context_parallel.collectives import Collectives
from evenstep.context_parallel.kernels import Kernel, pick_backend
from evenstep.context_parallel.prepared_sharding import PreparedSharding
from evenstep.errors import ConfigurationError


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    prepared: PreparedSharding,
    *,
    scale: float | None = None,
) -> torch.Tensor:
    """Computes causal attention within documents, over all ranks of the sharding.

    Every rank must call it as often and in the same order as the others, forward and backward, even
    without tokens: each call is one all-gather, and its backward one reduce-scatter. Gradients can
    be taken once, not twice. Under `torch.autocast` the inputs are cast as PyTorch's
    own attention casts them.

    Args:
        q: [tokens of this rank, query heads, head dim], in the order of ``sharding.indices(rank)``;
            or with a batch dimension of 1 in front.
        k, v: [tokens of this rank, kv heads, head dim], likewise. Query heads are a multiple of kv
            heads (grouped-query attention).
        prepared: from `prepare`.
        scale: factor of the products, before the softmax; 1 / sqrt(head dim) by default.

    Returns:
        Like `q`.

    Raises:
        ConfigurationError: shapes, dtypes or devices that do not match each other or the sharding,
            or that the back end does not support. On this rank alone, so the others wait for it
            until its process ends.
        PeerError: another rank died.
    """
    if any(x.device != prepared.device for x in (q, k, v)):
        raise ConfigurationError(
            f"q, k and v on {[str(x.device) for x in (q, k, v)]} must be on "
            f"{str(prepared.device)!r}, for which the sharding was prepared (prepare(device=))"
        )
    q, k, v = _cast(q, k, v)
    _check(q, k, v, prepared)
    batched = q.ndim == 4
    if batched:
        q, k, v = q[0], k[0], v[0]
    backend = pick_backend(prepared.backend, prepared.device, q.dtype)
    kernel = prepared.kernel(backend)
    keys, values = _Gather.apply(k, v, prepared.collectives, kernel, prepared.slot)  # type: ignore[no-untyped-call]
    # No kernel takes an empty batch. The reference, though it has no fragment to compute, still
    # lets backward reach the collective.
    run = kernel if prepared.tokens else prepared.kernel("sdpa")
    out = run(q, keys, values, q.shape[-1] ** -0.5 if scale is None else scale)
    return out[None] if batched else out


def _cast(*tensors: torch.Tensor) -> list[torch.Tensor]:
    """Casts to the dtype of autocast: after rotary embedding in float32, q and k differ from v."""
    kind = tensors[0].device.type
    if not torch.is_autocast_enabled(kind):
        return list(tensors)
    dtype = torch.get_autocast_dtype(kind)
    return [
        x.to(dtype) if x.is_floating_point() and x.dtype != torch.float64 else x for x in tensors
    ]


def _check(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, prepared: PreparedSharding) -> None:
    shapes = f"q {tuple(q.shape)}, k {tuple(k.shape)} and v {tuple(v.shape)}"
    if q.ndim not in (3, 4) or k.ndim != q.ndim or k.shape != v.shape:
        raise ConfigurationError(
            f"{shapes} must be [tokens, heads, head dim], k and v alike, or all [1, ...]"
        )
    if q.ndim == 4 and (len(q) != 1 or len(k) != 1):
        raise ConfigurationError(
            f"{shapes} have several rows; prepare and call attention for each row"
        )
    (tokens, heads, size), (key_tokens, kv_heads, key_size) = q.shape[-3:], k.shape[-3:]
    if tokens != prepared.tokens or key_tokens != prepared.tokens:
        raise ConfigurationError(
            f"{shapes} must have the {prepared.tokens} tokens of rank {prepared.rank}: those of "
            f"sharding.indices({prepared.rank}); put heads after tokens"
        )
    if size != key_size or not size:
        raise ConfigurationError(f"{shapes} must have equal head dims, at least 1")
    if not kv_heads or heads % kv_heads or not heads:
        raise ConfigurationError(
            f"{heads} query heads must be a multiple of {kv_heads} kv heads ({shapes})"
        )
    dtypes = [x.dtype for x in (q, k, v)]
    if len(set(dtypes)) > 1 or not q.is_floating_point():
        raise ConfigurationError(f"q, k and v of {dtypes} must have one floating dtype; cast them")


class _Gather(torch.autograd.Function):
    """Gathers the keys and values that this rank's kernel takes: [keys, kv heads, head dim].

    `slot` are tokens of the rank that has most: in the gathered buffer the rows of rank r begin at
    ``r * slot``. Backward, which every rank must reach, adds the gradients of a rank in float32 at
    least, and those of all ranks in the dtype of `k`.
    """

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
        ctx.collectives, ctx.slot = collectives, slot
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
        grad = grad.to(torch.promote_types(dtype, torch.float32))
        of_all = grad.new_zeros(ctx.collectives.ranks * ctx.slot, *grad.shape[1:])
        of_all.index_add_(0, rows, grad)
        own = ctx.collectives.reduce_scatter(of_all.to(dtype))[:tokens]
        return own[:, :heads], own[:, heads:], None, None, None
