"""FlashAttention's variable-length kernel: all fragments of a rank in one launch, on CUDA.

To the kernel a fragment is one sequence, with fewer queries than keys; see `varlen_arguments`.
Their causal mask is aligned at the bottom right. Keys that two fragments meet are repeated: with
two chunks per rank, one from either end, the keys are 1 + 1 / 2C times the tokens on C ranks.

The package flash-attn is used if it is installed, else PyTorch's own `varlen_attn`, which first
took a scale in 2.11, and fewer kv heads than query heads in 2.12.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any

import torch

from evenstep.context_parallel.kernels.layout import buffer_rows, varlen_arguments
from evenstep.plan.sharding import Sharding

VarlenAttention = Callable[..., torch.Tensor]


class FlashKernel:
    """See `evenstep.context_parallel.kernels.Kernel`. float16 and bfloat16 only."""

    def __init__(
        self,
        sharding: Sharding,
        rank: int,
        device: torch.device,
        *,
        function: VarlenAttention | None = None,
    ) -> None:
        varlen = varlen_arguments(sharding, rank)
        self.rows = torch.from_numpy(buffer_rows(sharding, varlen.keys)).to(device)
        self._bounds = (
            torch.from_numpy(varlen.cu_seqlens_q).to(device),
            torch.from_numpy(varlen.cu_seqlens_k).to(device),
            varlen.max_seqlen_q,
            varlen.max_seqlen_k,
        )
        self._function = function or flash_function()

    def __call__(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float
    ) -> torch.Tensor:
        assert self._function is not None  # `check_backend` refuses this back end otherwise
        return self._function(q, k, v, *self._bounds, scale=scale)


@cache
def flash_function() -> VarlenAttention | None:
    """A function (q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, *, scale) that
    is causal and takes fewer kv heads than query heads; None if no package has one."""
    return _of_package() or _of_torch()


def _of_package() -> VarlenAttention | None:
    try:
        flash_attn_varlen_func = import_module("flash_attn").flash_attn_varlen_func
    except (AttributeError, ImportError):
        return None

    def attend(*tensors_and_bounds: Any, scale: float) -> torch.Tensor:
        out: torch.Tensor = flash_attn_varlen_func(
            *tensors_and_bounds, softmax_scale=scale, causal=True
        )
        return out

    return attend


def _of_torch() -> VarlenAttention | None:
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None
    takes = inspect.signature(varlen_attn).parameters
    causal = {"window_size": (-1, 0)} if "window_size" in takes else {"is_causal": True}

    def attend(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *bounds: Any, scale: float
    ) -> torch.Tensor:
        options: dict[str, Any] = dict(causal)
        shared = q.shape[1] // k.shape[1]  # query heads of a kv head
        if "enable_gqa" in takes:
            options["enable_gqa"] = shared > 1
        elif shared > 1:
            k, v = (x.repeat_interleave(shared, dim=1) for x in (k, v))
        if "scale" in takes:
            options["scale"] = scale
        elif scale != q.shape[-1] ** -0.5:
            q = q * (scale * q.shape[-1] ** 0.5)
        out = varlen_attn(q, k, v, *bounds, **options)
        assert isinstance(out, torch.Tensor)  # a tuple only on request
        return out

    return attend
