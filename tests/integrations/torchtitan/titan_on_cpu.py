"""torchtitan on the CPU: to be imported before any other part of torchtitan.

It takes CUDA where it finds no accelerator. What is replaced here is the device, the numbers that
it prints about memory, a function that torch 2.13 lacks, and FlexAttention, which has no backward
pass on the CPU: attention with the same mask takes its place. Its Trainer, models, FSDP, losses and
checkpoints are its own.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

os.environ["TORCH_COMPILE_DISABLE"] = "1"

import torch
import torch.distributed as dist
import torchtitan.tools.utils

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

if not hasattr(dist, "set_timeout"):
    dist.set_timeout = lambda timeout, group=None: (group or dist.group.WORLD).set_timeout(timeout)

from torch.distributed.fsdp import FSDPModule  # noqa: E402
from torch.nn.attention.flex_attention import create_mask  # noqa: E402
from torch.nn.functional import scaled_dot_product_attention  # noqa: E402
from torchtitan.models.common.attention import FlexAttention  # noqa: E402


class MaskedAttention(FlexAttention):
    """The attention of a FlexAttention mask, every score of which is computed."""

    @dataclass(kw_only=True, slots=True)
    class Config(FlexAttention.Config):
        pass

    def forward(
        self,
        q_BLNH: torch.Tensor,
        k_BLNH: torch.Tensor,
        v_BLNH: torch.Tensor,
        *,
        attention_masks: Any,
        scale: float | None = None,
        enable_gqa: bool = False,
        **others: Any,
    ) -> torch.Tensor:
        batch, length = q_BLNH.shape[:2]
        mask = create_mask(attention_masks.mask_mod, batch, 1, length, length, device="cpu")
        heads = (x.transpose(1, 2) for x in (q_BLNH, k_BLNH, v_BLNH))
        out = scaled_dot_product_attention(
            *heads, attn_mask=mask, scale=scale, enable_gqa=enable_gqa
        )
        return out.transpose(1, 2)


def reduce_over_gloo(model: torch.nn.Module) -> None:
    """Gloo has no sum with a factor, by which torchtitan's FSDP averages over no ranks: 1."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_force_sum_reduction_for_comms(True)
