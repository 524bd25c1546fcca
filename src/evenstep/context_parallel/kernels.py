"""Back ends of attention over a rank's fragments, and which one runs: the one asked for, or the
fastest that device and dtype allow.

A kernel is built once per micro-batch from the sharding, with its index tensors on the device, and
called in every layer. It knows nothing of other ranks.

`SdpaKernel` is PyTorch's scaled dot-product attention, fragment by fragment: the reference, which
runs anywhere. A fragment that begins its document is plainly causal. Any other needs a mask, whose
rows are its queries and whose columns are all keys up to its end, so it is cut into blocks of rows
whose masks have at most `MASK` entries. Backward computes each block again instead of keeping its
mask, so that memory grows with tokens and not with pairs. That costs one more forward pass, which
the other back end does not need.

`FlashKernel` is FlashAttention's variable-length kernel: all fragments of a rank in one launch, on
CUDA. To the kernel a fragment is one sequence, with fewer queries than keys; see
`varlen_arguments`. Their causal mask is aligned at the bottom right. Keys that two fragments meet
are repeated: with two chunks per rank, one from either end, the keys are 1 + 1 / 2C times the
tokens on C ranks. The package flash-attn is used if it is installed, else PyTorch's own
`varlen_attn` from 2.12 on, which takes a scale, and fewer kv heads than query heads.
"""

from __future__ import annotations

import abc
import inspect
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from itertools import pairwise
from typing import Any

import torch
from torch.autograd.function import once_differentiable
from torch.nn.functional import scaled_dot_product_attention

from evenstep.context_parallel.layout import buffer_rows, varlen_arguments
from evenstep.errors import ConfigurationError
from evenstep.plan.sharding import Sharding

BACKENDS = ("auto", "flash", "sdpa")
_HALF = (torch.float16, torch.bfloat16)


class Kernel(abc.ABC):
    """Causal attention within documents, for one rank's fragments."""

    def __init__(self, sharding: Sharding, rank: int, device: torch.device) -> None:
        self.varlen = varlen_arguments(sharding, rank)
        self.rows = torch.from_numpy(buffer_rows(sharding, self.varlen.keys)).to(device)
        """[keys] int64: rows of the buffer of all ranks' keys (see `layout`) that it takes, in its
        order."""

    @abc.abstractmethod
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


class SdpaKernel(Kernel):
    def __init__(self, sharding: Sharding, rank: int, device: torch.device) -> None:
        super().__init__(sharding, rank, device)
        queries, keys = self.varlen.cu_seqlens_q.tolist(), self.varlen.cu_seqlens_k.tolist()
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


VarlenAttention = Callable[..., torch.Tensor]


class FlashKernel(Kernel):
    """float16 and bfloat16 only."""

    def __init__(self, sharding: Sharding, rank: int, device: torch.device) -> None:
        super().__init__(sharding, rank, device)
        varlen = self.varlen
        ends = (varlen.cu_seqlens_q, varlen.cu_seqlens_k)
        self._bounds = (
            *(torch.from_numpy(each).to(device) for each in ends),
            *(varlen.max_seqlen_q, varlen.max_seqlen_k),
        )

    def __call__(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float
    ) -> torch.Tensor:
        function = flash_function()
        assert function is not None  # `check_backend` refuses this back end otherwise
        return function(q, k, v, *self._bounds, scale=scale)


@cache
def flash_function() -> VarlenAttention | None:
    """A function (q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, *, scale) that
    is causal and takes fewer kv heads than query heads; None if no package has one."""
    with suppress(AttributeError, ImportError):
        of_package = import_module("flash_attn").flash_attn_varlen_func
        return lambda *given, scale: of_package(*given, softmax_scale=scale, causal=True)
    with suppress(AttributeError, ImportError):
        of_torch: Any = import_module("torch.nn.attention.varlen").varlen_attn
        if {"window_size", "scale", "enable_gqa"} <= inspect.signature(of_torch).parameters.keys():
            return lambda q, k, v, *bounds, scale: of_torch(
                *(q, k, v, *bounds),
                window_size=(-1, 0),
                scale=scale,
                enable_gqa=q.shape[1] != k.shape[1],
            )
    return None


def check_backend(name: str, device: torch.device) -> None:
    """Raises `ConfigurationError` if there is no such back end, or not on this device."""
    if name not in BACKENDS:
        raise ConfigurationError(f"backend={name!r} must be one of {BACKENDS}")
    if name == "flash" and device.type != "cuda":
        raise ConfigurationError(
            f"backend='flash' runs on CUDA alone, and the device is {str(device)!r}; use "
            "backend='auto' or 'sdpa'"
        )
    if name == "flash" and flash_function() is None:
        raise ConfigurationError(
            f"backend='flash' needs flash-attn, or PyTorch 2.12 (this is {torch.__version__}); "
            "install one of them, or use backend='sdpa'"
        )


def pick_backend(name: str, device: torch.device, dtype: torch.dtype) -> str:
    """Picks the back end for tensors of this dtype: `name`, or for "auto" one of the others.

    Raises:
        ConfigurationError: the back end asked for does not support that.
    """
    if name == "flash" and dtype not in _HALF:
        raise ConfigurationError(
            f"backend='flash' takes float16 and bfloat16, not {dtype}; run the model under "
            "torch.autocast, or use backend='auto'"
        )
    if name != "auto":
        return name
    fits = device.type == "cuda" and dtype in _HALF and flash_function() is not None
    return "flash" if fits else "sdpa"


KERNELS: dict[str, type[Kernel]] = {"flash": FlashKernel, "sdpa": SdpaKernel}
