"""FSDP2 of Accelerate where there is no GPU: it ignores its FSDP plugin there, for no other reason
than the device. All that follows is its own."""

from __future__ import annotations

from typing import Any

from accelerate import Accelerator, PartialState
from accelerate.utils import DistributedType


class CpuAccelerator(Accelerator):
    def __init__(self, *, fsdp_plugin: Any = None, **options: Any) -> None:
        super().__init__(fsdp_plugin=fsdp_plugin, **options)
        if fsdp_plugin is not None:
            for state in (PartialState(), self.state):
                state.distributed_type = DistributedType.FSDP
            self.state.fsdp_plugin = fsdp_plugin
