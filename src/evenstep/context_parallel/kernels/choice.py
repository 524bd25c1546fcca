"""What a back end is, and which one runs: the one asked for, or the fastest that device and dtype
allow.

A kernel is built once per micro-batch from the sharding, with its index tensors on the device, and
called in every layer. It knows nothing of other ranks.
"""

from __future__ import annotations

from typing import Protocol

import torch

from evenstep.context_parallel.kernels.flash import FlashKernel, flash_function
from evenstep.context_parallel.kernels.sdpa import SdpaKernel
from evenstep.errors import ConfigurationError
from evenstep.plan.sharding import Sharding

BACKENDS = ("auto", "flash", "sdpa")
_HALF = (torch.float16, torch.bfloat16)


class Kernel(Protocol):
    """Causal attention within documents, for one rank's fragments."""

    rows: torch.Tensor
    """[keys] int64: rows of the buffer of all ranks' keys (see `layout`) that it takes, in its
    order."""

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
            "backend='flash' needs the package flash-attn, or a PyTorch with "
            f"torch.nn.attention.varlen (this is {torch.__version__}); install one of them, or use "
            "backend='sdpa'"
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


def kernel_of(name: str, sharding: Sharding, rank: int, device: torch.device) -> Kernel:
    """Builds the back end `name` (not "auto") for one rank's fragments."""
    if name == "flash":
        return FlashKernel(sharding, rank, device)
    return SdpaKernel(sharding, rank, device)
