"""PyTorch's attention on GPUs where every new shape of a batch costs a tenth of a second.

On NVIDIA's Hopper and on datacenter Blackwell, ``scaled_dot_product_attention`` takes cuDNN first
where it is at least 9.15.1, as it is in wheels of torch 2.11. cuDNN builds a plan for each shape
that it has not met, forward and backward, and batches of dynamic lengths seldom repeat one.
FlashAttention, which comes next, builds none.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING

from evenstep.tools.doctor.finding import Finding

if TYPE_CHECKING:
    import torch

logger = logging.getLogger("evenstep")

_CURE = "torch.backends.cuda.enable_cudnn_sdp(False)"
_FOUND = "scaled_dot_product_attention takes cuDNN, which builds a plan for every new shape"


def plans_each_shape(device: torch.device) -> bool:
    """Whether attention on a device takes cuDNN. Where it may, tries it once, on few tokens."""
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    may = device.type == "cuda" and torch.backends.cuda.cudnn_sdp_enabled()  # type: ignore[no-untyped-call]
    if not may or torch.cuda.get_device_capability(device) < (9, 0):
        return False
    with suppress(RuntimeError), torch.enable_grad():  # such as a device that is another's alone
        size = (1, 1, 128, 64)
        q = torch.zeros(size, dtype=torch.bfloat16, device=device, requires_grad=True)
        node = scaled_dot_product_attention(q, q, q, is_causal=True).grad_fn
        return node is not None and "Cudnn" in node.name()
    return False


def attention(device: torch.device) -> Iterator[Finding]:
    if plans_each_shape(device):
        remedy = f"write {_CURE} where training begins; see docs/gpu.md"
        yield Finding(check="attention", found=_FOUND, remedy=remedy)


@cache
def warn_of_plans(device: torch.device, rank: int) -> None:
    """Warns, once and on the first rank, of a device on which attention builds plans."""
    if not rank and plans_each_shape(device):
        logger.warning("%s: write %s before you train; see docs/gpu.md", _FOUND, _CURE)
