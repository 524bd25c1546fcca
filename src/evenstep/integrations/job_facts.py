"""What a trainer's job tells a loader: the model whose time is made equal, and when ranks wait."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from evenstep.loader.dataloader import DataLoader


def take_cost(loader: DataLoader, objects: Iterable[Any]) -> None:
    """Has the loader take the cost of the one model with a ``config`` among `objects`, such as one
    of transformers; and of none where there are several. All ranks call it: see
    `evenstep.DataLoader.take_cost`."""
    models = [one for one in objects if isinstance(one, torch.nn.Module) and hasattr(one, "config")]
    if len(models) == 1:
        loader.take_cost(models[0])


def waits_at_updates(driver: Any, objects: Iterable[Any]) -> bool:
    """Whether ranks wait for each other at the end of an update alone: where DDP averages gradients
    under ``no_sync``, or DeepSpeed keeps them whole (ZeRO-1). FSDP and ZeRO-3 gather weights in
    each step, and ZeRO-2 shards the gradients of each.

    Args:
        driver: an ``Accelerator``, or a strategy of Lightning, which steps the optimizer at the end
            of updates by itself.
        objects: that are trained, models among them.
    """
    models = [one for one in objects if isinstance(one, torch.nn.Module)]
    if any(hasattr(weights, "full_tensor") for model in models for weights in model.parameters()):
        return False
    if hasattr(driver, "distributed_type"):
        each = driver.gradient_state.plugin_kwargs.get("sync_each_batch", False)
        ddp = driver.distributed_type.value.startswith("MULTI_") and not each
        deepspeed = driver.state.deepspeed_plugin
        stage = None if deepspeed is None else deepspeed.zero_stage
    else:
        kinds = {kind.__name__ for kind in type(driver).__mro__}
        ddp, stage = "DDPStrategy" in kinds, None
        if "DeepSpeedStrategy" in kinds:
            stage = (driver.config or {}).get("zero_optimization", {}).get("stage", 0)
    return ddp if stage is None else stage < 2
