"""The CPU in place of CUDA, for megatron-core, which names the device "cuda" in its schedules.

Its code runs as it is: only where it asks for a CUDA device it gets the CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

CPU = torch.device("cpu")


class CudaOnCpu(TorchFunctionMode):
    """Within it, tensors that are made on CUDA, or sent there, are on the CPU."""

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = dict(kwargs or {})
        if function is torch.Tensor.cuda:
            return args[0]
        if function is torch.Tensor.to and args[1:2] == ("cuda",):
            args = (args[0], CPU, *args[2:])
        if "device" in kwargs and kwargs["device"] is not None:
            kwargs["device"] = CPU
        return function(*args, **kwargs)


def install() -> None:
    """For the rest of the process."""
    torch.cuda.current_device = lambda: CPU
    torch.cuda.set_device = lambda device: None
    torch.cuda.synchronize = lambda *_: None
    CudaOnCpu().__enter__()
