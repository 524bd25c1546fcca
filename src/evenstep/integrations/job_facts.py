"""What a trainer's job and its loader tell each other before the first step.

The job tells the model whose time is made equal, and when ranks wait; the loader how many steps an
epoch will have. Trainers want that number for progress bars and learning rates before any length is
known. It is estimated from a few samples: their lengths are dealt to ranks and run through the
policy, as `evenstep simulate` does. Training ends where the data ends, not where the estimate does.

`StepValues` is what is logged beside the loss: padding, imbalance, composition, tokens and slow
ranks of the steps since the last log. `MeanLoss` is the loss of an evaluation.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset

from evenstep.arrays import Int64Array
from evenstep.batch.composition import Composition
from evenstep.batch.step_info import StepInfo
from evenstep.errors import ConfigurationError, EvenstepError, described
from evenstep.integrations.rank_values import by_rank_0, of_all_ranks
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
    asked = loader.update_tokens
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
            update_tokens=asked if isinstance(asked, int) else 0,
        )
        steps.append(run.steps * samples / simulated)
    return math.ceil(max(steps))


class StepValues:
    """Sums steps up between two logs. All ranks find the same values."""

    def __init__(self) -> None:
        self.tokens = 0
        """Real tokens of all ranks since the beginning."""
        self._clear()

    def _clear(self) -> None:
        self._tokens = self._padded = self._steps = 0
        self._slow: dict[str, float] = {}
        self._images = self._patches = 0
        self._largest = self._mean = 0.0  # cost of the ranks, summed over steps
        self._measured: list[float] = []
        self._composition = Composition()

    def add(self, step: StepInfo) -> None:
        """Takes a step that was trained on, in order."""
        self.tokens += step.global_tokens
        self._steps += 1
        self._tokens += step.global_tokens
        self._padded += step.global_padded_tokens
        self._images += step.global_images
        self._patches += step.global_patches
        self._composition.add(step)
        last = step.scalars("")
        self._slow = {name: last[name] for name in ("slow_share", "slow_rank") if name in last}
        if not step.ends_wait:
            return
        self._largest += float(step.waits.cost.max())
        self._mean += float(step.waits.cost.mean())
        if step.imbalance_measured is not None:
            self._measured.append(step.imbalance_measured)

    def take(self) -> dict[str, float]:
        """The values since the last call, by name; empty if there was no step.

        - ``padding``: 1 - real tokens / tokens as computed
        - ``imbalance``: largest cost of a rank over the mean cost, summed over steps; over updates
          that have ended where ranks wait at their end
        - ``imbalance_measured``: see `StepInfo.imbalance_measured`; mean, once it is known
        - ``composition``: see `evenstep.batch.Composition`; of updates that have ended
        - ``tokens``: real tokens since the beginning, ``tokens_per_step`` since the last call
        - ``slow_share``, ``slow_rank``: the slowest of `StepInfo.slow` in the last step, once it is
          known; 0 and -1 if there is none
        - ``images_per_step``, ``patches_per_step``: where there were images that are counted
        """
        if not self._steps:
            return {}
        values = {
            "padding": 1.0 - self._tokens / max(self._padded, 1),
            "imbalance": self._largest / self._mean if self._mean else 1.0,
            "composition": self._composition.value,
            "tokens": self.tokens,
            "tokens_per_step": self._tokens / self._steps,
            **self._slow,
        }
        if self._measured:
            values["imbalance_measured"] = sum(self._measured) / len(self._measured)
        if self._images:
            values["images_per_step"] = self._images / self._steps
            values["patches_per_step"] = self._patches / self._steps
        self._clear()
        return values


class MeanLoss:
    """The loss of an evaluation: the mean over what its batches weigh, on all ranks."""

    def __init__(self) -> None:
        self._weighted: list[tuple[torch.Tensor, int]] = []

    def add(self, loss: torch.Tensor, weight: int) -> None:
        """Takes the mean over a batch of this rank.

        Args:
            weight: tokens that it is over; 0 for a filler, whose loss may be NaN.
        """
        if weight:
            self._weighted.append((loss.detach(), weight))

    def of_all_ranks(self) -> float:
        """All ranks call it, and find the same."""
        own = [(loss.item() * weight, weight) for loss, weight in self._weighted]
        sums, weights = zip(*of_all_ranks([sum(each) for each in zip(*own)] or [0.0, 0]))
        return float(sum(sums) / max(sum(weights), 1))
