"""Custom loops with Fabric."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from evenstep.errors import ConfigurationError
from evenstep.integrations.handed_steps import HandedSteps, add_hooks, scaled_loss
from evenstep.integrations.lightning.step_callback import Fabric
from evenstep.integrations.rank_values import all_parts, check_ranks
from evenstep.loader.dataloader import DataLoader


class EvenFabric(Fabric):
    """Scales every loss by the step that it is of."""

    def backward(self, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        super().backward(scaled_loss(self, tensor), *args, **kwargs)


class FabricLoader(HandedSteps):
    """An evenstep loader in a loop with Fabric."""

    BACKWARD = "fabric.backward(loss)"
    UPDATES = "step it where loader.step.ends_update"

    def __iter__(self) -> Iterator[Any]:
        """
        Raises:
            ConfigurationError: from an optimizer's ``step``: see
                `evenstep.integrations.handed_steps`.
        """
        check_ranks("Fabric", self._owner.world_size)
        steps = self._handed()
        try:
            for batch, _ in steps:
                yield self._owner.to_device(batch)
        finally:
            steps.close()

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
            f"a {type(loader).__name__} is no evenstep.DataLoader, but for fabric.setup_dataloaders"
        )
    prepared = FabricLoader(fabric, loader)
    add_hooks(fabric, EvenFabric)
    return prepared
