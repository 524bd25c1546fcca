"""Custom loops with Fabric."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from evenstep.batch.step_info import StepInfo
from evenstep.errors import ConfigurationError
from evenstep.integrations.handed_steps import HandedSteps, add_hooks, scaled_loss
from evenstep.integrations.lightning.step_callback import Fabric
from evenstep.integrations.rank_values import all_parts, check_ranks
from evenstep.loader.dataloader import DataLoader


class EvenFabric(Fabric):
    """Scales every loss by the step that it is of."""

    def backward(self, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        super().backward(scaled_loss(self, tensor), *args, **kwargs)


class FabricLoader:
    """An evenstep loader in a loop with Fabric."""

    def __init__(self, fabric: Fabric, loader: DataLoader) -> None:
        self.loader = loader
        self._fabric = fabric
        self._steps = HandedSteps(
            fabric,
            loader,
            counts=lambda: True,
            backward="fabric.backward(loss)",
            update_option="step it where loader.step.ends_update",
        )

    def __iter__(self) -> Iterator[Any]:
        """
        Raises:
            ConfigurationError: from an optimizer's ``step``: see
                `evenstep.integrations.handed_steps`.
        """
        check_ranks("Fabric", self._fabric.world_size)
        steps = iter(self._steps)
        try:
            for batch, _ in steps:
                yield self._fabric.to_device(batch)
        finally:
            steps.close()

    @property
    def step(self) -> StepInfo | None:
        """Of the batch that the loop is at; None outside of a pass. `fabric.backward` applies its
        loss scale."""
        return self._steps.step

    def __len__(self) -> int:
        return len(self.loader)

    @property
    def epoch(self) -> int:
        """Number of the next pass: after ``fabric.load``, of the one to resume."""
        return self.loader.epoch

    def set_epoch(self, epoch: int) -> None:
        self.loader.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Where the loop is, with the parts of all ranks. All ranks call it, as
        ``fabric.save`` does."""
        return all_parts(self.loader.state_dict())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resumes on any number of ranks.

        Raises:
            MismatchError: the state is of another loader.
        """
        self.loader.load_state_dict(state)


def setup(fabric: Fabric, loader: DataLoader) -> FabricLoader:
    """A loader for a loop with Fabric, in place of ``fabric.setup_dataloaders(loader)``, which
    takes torch's alone. Its batches are on Fabric's device, `fabric.backward` scales their losses,
    and ``fabric.save`` and ``fabric.load`` take it with the model.

    Raises:
        ConfigurationError: its batches are lists of micro-batches.
    """
    if not isinstance(loader, DataLoader):
        raise ConfigurationError(
            f"a {type(loader).__name__} is no evenstep.DataLoader; fabric.setup_dataloaders takes "
            "it"
        )
    prepared = FabricLoader(fabric, loader)
    add_hooks(fabric, EvenFabric)
    return prepared
