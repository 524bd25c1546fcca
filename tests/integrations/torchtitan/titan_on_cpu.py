"""torchtitan on the CPU: to be imported before any other part of torchtitan.

It takes CUDA where it finds no accelerator. What is replaced here is the device, the numbers that
it prints about memory, a function that torch 2.13 lacks, a reduction that Gloo lacks, and
FlexAttention, which has no backward pass on the CPU: attention with the same mask takes its place.
Its Trainer, models, FSDP, losses and checkpoints are its own.
"""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

os.environ["TORCH_COMPILE_DISABLE"] = "1"

import torch
import torch.distributed as dist
import torchtitan.tools.utils
from torch.distributed.fsdp import FSDPModule
from torch.nn.attention.flex_attention import create_mask
from torch.nn.functional import scaled_dot_product_attention

torchtitan.tools.utils.device_type = "cpu"
torchtitan.tools.utils.device_module = SimpleNamespace(
    **{name: getattr(torch.cpu, name) for name in ("device_count", "set_device", "synchronize")},
    current_device=lambda: 0,
    get_device_name=lambda device: "CPU",
    get_device_properties=lambda device: SimpleNamespace(total_memory=1 << 30),
    memory_stats=lambda device: {},
    reset_peak_memory_stats=lambda: None,
    empty_cache=lambda: None,
)

from torchtitan.models.common.attention import FlexAttention  # noqa: E402

if not hasattr(dist, "set_timeout"):
    dist.set_timeout = lambda timeout, group=None: (group or dist.group.WORLD).set_timeout(timeout)


def masked_attention(
    self: FlexAttention,
    q_BLNH: torch.Tensor,
    k_BLNH: torch.Tensor,
    v_BLNH: torch.Tensor,
    *,
    attention_masks: Any,
    scale: float | None = None,
    enable_gqa: bool = False,
    **others: Any,
) -> torch.Tensor:
    """Of [batch, length, heads, size] under the mask of FlexAttention. torchtitan shards arguments
    by their names."""
    batch, length = q_BLNH.shape[:2]
    mask = create_mask(attention_masks.mask_mod, batch, 1, length, length, device="cpu")
    heads = (x.transpose(1, 2) for x in (q_BLNH, k_BLNH, v_BLNH))
    out = scaled_dot_product_attention(*heads, attn_mask=mask, scale=scale, enable_gqa=enable_gqa)
    return out.transpose(1, 2)


FlexAttention.forward = masked_attention

set_factor = FSDPModule.set_gradient_divide_factor


def divide_by(self: FSDPModule, factor: float) -> None:
    """Gloo has no sum with a factor: torchtitan's is 1."""
    assert factor == 1.0
    set_factor(self, factor)
    self.set_force_sum_reduction_for_comms(True)


FSDPModule.set_gradient_divide_factor = divide_by
