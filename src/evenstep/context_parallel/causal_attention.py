"""Context-parallel attention: every rank has the queries of its fragments and meets all keys.

Keys and values are gathered from all ranks; each fragment, tokens [start, end) of a document, then
attends with its queries to the document's keys up to `end`, causally. That is what one process
would compute for these queries, whatever the plan; and the gradients of keys and values, which
every rank has a part of, are summed on the rank that they came from (WLB-LLM, section 5).
"""

from __future__ import annotations

import torch

from evenstep.context_parallel.gather import gather_keys_values
from evenstep.context_parallel.kernels import pick_backend
from evenstep.context_parallel.prepared_sharding import PreparedSharding
from evenstep.errors import ConfigurationError

__all__ = ["attention"]


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    plan: PreparedSharding,
    *,
    scale: float | None = None,
) -> torch.Tensor:
    """Causal attention within documents, over all ranks of the plan.

    Every rank must call it as often and in the same order as the others, forward and backward,
    a rank without tokens too: each call is one all-gather, and its backward one reduce-scatter.
    Gradients can be taken once, not twice. Under `torch.autocast` the inputs are cast as PyTorch's
    own attention casts them.

    Args:
        q: [tokens of this rank, query heads, head dim], in the order of ``sharding.indices(rank)``;
            or with a batch dimension of 1 before these.
        k, v: [tokens of this rank, kv heads, head dim], likewise. Query heads are a multiple of kv
            heads (grouped-query attention).
        plan: of `prepare`.
        scale: of the products, before the softmax; 1 / sqrt(head dim) by default.

    Returns:
        Like `q`.

    Raises:
        ConfigurationError: shapes, dtypes or devices that do not fit each other or the plan, or
            that the back end cannot do. On this rank alone, so that the others wait for it until
            its process ends.
        PeerError: another rank died.
    """
    if any(x.device != plan.device for x in (q, k, v)):
        raise ConfigurationError(
            f"q, k and v on {[str(x.device) for x in (q, k, v)]} must lie on {str(plan.device)!r}, "
            "for which the plan was prepared; pass device= to prepare()"
        )
    q, k, v = _cast(q, k, v)
    _check(q, k, v, plan)
    batched = q.ndim == 4
    if batched:
        q, k, v = q[0], k[0], v[0]
    trains = torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v))
    backend = pick_backend(plan.backend, plan.device, q.dtype, trains=trains)
    kernel = plan.kernel(backend)
    keys, values = gather_keys_values(
        k, v, plan.exchange, rows=kernel.rows, slot=plan.slot, repeated=kernel.repeated
    )
    # No kernel takes an empty batch, and the reference, which has no fragment to do, is still
    # the way for backward to reach the exchange.
    run = kernel if plan.tokens else plan.kernel("sdpa")
    out = run(q, keys, values, q.shape[-1] ** -0.5 if scale is None else scale)
    return out[None] if batched else out


def _cast(*tensors: torch.Tensor) -> list[torch.Tensor]:
    """Under autocast, to its dtype: rotary embedding in float32 leaves q and k other than v."""
    kind = tensors[0].device.type
    if not torch.is_autocast_enabled(kind):
        return list(tensors)
    dtype = torch.get_autocast_dtype(kind)
    return [
        x.to(dtype) if x.is_floating_point() and x.dtype != torch.float64 else x for x in tensors
    ]


def _check(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, plan: PreparedSharding) -> None:
    shapes = f"q {tuple(q.shape)}, k {tuple(k.shape)} and v {tuple(v.shape)}"
    if q.ndim not in (3, 4) or k.ndim != q.ndim or k.shape != v.shape:
        raise ConfigurationError(
            f"{shapes} must be [tokens, heads, head dim], k and v alike, or all with a batch "
            "dimension of 1 before these"
        )
    if q.ndim == 4 and (len(q) != 1 or len(k) != 1):
        raise ConfigurationError(
            f"{shapes} have a batch dimension other than 1; a plan is for one packed sequence, so "
            "prepare and call attention for each row"
        )
    (tokens, heads, size), (key_tokens, kv_heads, key_size) = q.shape[-3:], k.shape[-3:]
    if tokens != plan.tokens or key_tokens != plan.tokens:
        raise ConfigurationError(
            f"{shapes} must have the {plan.tokens} tokens that the plan gives rank {plan.rank} of "
            f"{plan.sharding.ranks}; cut the micro-batch by sharding.indices({plan.rank}), and lay "
            "heads behind tokens"
        )
    if size != key_size or not size:
        raise ConfigurationError(f"{shapes} must have equal head dims, from 1")
    if not kv_heads or heads % kv_heads or not heads:
        raise ConfigurationError(
            f"{heads} query heads must be a multiple of {kv_heads} kv heads ({shapes})"
        )
    dtypes = [x.dtype for x in (q, k, v)]
    if len(set(dtypes)) > 1 or not q.is_floating_point():
        raise ConfigurationError(f"q, k and v of {dtypes} must be of one floating dtype; cast them")
