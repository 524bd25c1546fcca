"""What a trainer's job and its loader tell each other before the first step.

The job tells the model whose time is made equal, and when ranks wait; the loader how many steps an
epoch will have. Trainers want that number for progress bars and learning rates before any length is
known. It is estimated from a few samples: their lengths are dealt to ranks and run through the
policy, as `evenstep simulate` does. Training ends where the data ends, not where the estimate does.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset

from evenstep.arrays import Int64Array
from evenstep.errors import ConfigurationError, EvenstepError, described
from evenstep.integrations.rank_values import by_rank_0
from evenstep.loader.dataloader import DataLoader
from evenstep.tools.simulate.run import deal, simulate


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


_MEASURED = 2048  # samples
_SECONDS = 3.0  # for measuring, where samples are slow
_ENOUGH = 32  # samples measured, however slow
_EPOCHS, _MOST_EPOCHS = 5, 20  # simulated; more of them where they are small
_SIMULATED = 4096  # samples of a simulated epoch, and so many more for each rank:
_PER_RANK = 64


def estimate_steps(loader: DataLoader) -> int | None:
    """Steps of an epoch, rather too many than too few. The same on all ranks, which all call it;
    None where the number of samples is unknown. Rank 0 measures 2,048 samples, or fewer within 3
    seconds.

    Raises:
        EvenstepError: on all ranks, that a sample cannot be read or measured.
    """
    steps, samples = by_rank_0(lambda: _known(loader), EvenstepError)
    if steps is not None:
        return steps
    if samples is None:
        return None
    if loader.policy.fits_memory:
        raise ConfigurationError(
            'how many steps an epoch has is not known before max_tokens="auto" has found what '
            "fits; say how many to make (max_steps), or pass a number of tokens"
        )
    loader.learn()
    return by_rank_0(lambda: _estimated(loader, samples), EvenstepError)


def _known(loader: DataLoader) -> tuple[int | None, int | None]:
    """Steps and samples of an epoch, where they are known: samplers may differ between ranks."""
    try:
        return len(loader), None
    except TypeError:
        streamed = isinstance(loader.dataset, IterableDataset)
        return None, None if streamed else loader.epoch_samples


def _estimated(loader: DataLoader, samples: int) -> int:
    try:
        measured = loader.measure_lengths(_MEASURED, seconds=_SECONDS, enough=_ENOUGH)
        return _simulated(loader, round(samples * measured.share), measured.lengths)
    except Exception as error:
        message = str(error) if isinstance(error, EvenstepError) else described(error)
        raise EvenstepError(f"the steps of an epoch cannot be estimated: {message}") from error


def _simulated(loader: DataLoader, samples: int, lengths: Int64Array) -> int:
    """The most steps of some simulated epochs of the measured lengths. If not all samples were
    measured, each epoch resamples the lengths, as other samples would have others."""
    rng = np.random.default_rng(loader.seed)
    world_size = loader.world_size
    all_measured = len(lengths) > samples - world_size
    simulated = len(lengths)
    if not all_measured:
        simulated = min(samples, _SIMULATED + _PER_RANK * world_size)
    steps = []
    epochs = min(max(_EPOCHS, _EPOCHS * _SIMULATED // max(simulated, 1)), _MOST_EPOCHS)
    for seed in range(epochs):
        drawn = rng.choice(rng.choice(lengths, len(lengths)), simulated)
        if all_measured:
            drawn = rng.permutation(lengths)
        shards = [drawn[share] for share in deal(simulated, world_size, seed)]
        run = simulate(
            loader.sized_policy,
            shards,
            buffer_size=loader.memory.buffer_size,
            accumulate=loader.accumulate,
        )
        steps.append(run.steps * samples / simulated)
    return math.ceil(max(steps))
