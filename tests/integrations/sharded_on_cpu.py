"""Parameters on several ranks where there is no GPU: FSDP2 of Accelerate, which ignores its plugin
there for no other reason than the device, and DeepSpeed. All that follows is their own."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import pytest
import torch
from accelerate import Accelerator, PartialState
from accelerate.utils import DistributedType
from tiny_model import flat


class CpuAccelerator(Accelerator):
    def __init__(self, *, fsdp_plugin: Any = None, **options: Any) -> None:
        super().__init__(fsdp_plugin=fsdp_plugin, **options)
        if fsdp_plugin is not None:
            for state in (PartialState(), self.state):
                state.distributed_type = DistributedType.FSDP
            self.state.fsdp_plugin = fsdp_plugin


with_deepspeed = pytest.mark.skipif(find_spec("deepspeed") is None, reason="no DeepSpeed")


def ways(*cases: tuple[Any, ...]) -> Any:
    """Parameters of tests, those with ZeRO only where DeepSpeed is."""
    return [
        pytest.param(*case, marks=with_deepspeed if "zero" in case[0] else ()) for case in cases
    ]


def zero(stage: int, **more: Any) -> dict[str, Any]:
    """DeepSpeed's configuration of ZeRO."""
    import deepspeed.ops

    # Else DeepSpeed compiles an all-reduce over shared memory, for minutes.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    return {"stage": stage, **more}


def parameters_of(model: Any) -> torch.Tensor:
    """All parameters, those that other ranks hold included."""
    parameters = list(model.parameters())
    if hasattr(parameters[0], "ds_id"):  # ZeRO-3
        from deepspeed.utils import safe_get_full_fp32_param

        parameters = [safe_get_full_fp32_param(p) for p in parameters]
    return flat(parameters).clone()
