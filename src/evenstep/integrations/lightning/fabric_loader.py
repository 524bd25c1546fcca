"""Loops of one's own with Fabric."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from evenstep.errors import ConfigurationError
from evenstep.integrations.handed_steps import watched
from evenstep.integrations.lightning.installed import Fabric
from evenstep.integrations.rank_values import check_ranks
from evenstep.integrations.states import gather_state
from evenstep.loader.dataloader import DataLoader


class FabricLoader:
    """An evenstep loader in a loop with Fabric. A batch carries its `StepInfo`."""

    def __init__(self, fabric: Fabric, loader: DataLoader) -> None:
        self.loader = loader
        self._fabric = fabric

    def __iter__(self) -> Iterator[Any]:
        """
        Raises:
            ConfigurationError: a batch is no mapping, so that no step can be put in. From an
                optimizer's ``step``: see `evenstep.integrations.handed_steps`.
        """
        check_ranks("Fabric", self._fabric.world_size)
        steps = watched(
            self.loader.steps(),
            times=1,
            scaling=self.loader.loss_scaling != "none",
            counts=lambda: True,
            update_option="step it where step.ends_update",
        )
        try:
            for batch, step in steps:
                batch = self._fabric.to_device(batch)
                step.put_into(batch)
                yield batch
        finally:
            steps.close()

    def __len__(self) -> int:
        return len(self.loader)

    @property
    def epoch(self) -> int:
        """Number of the next pass: after ``fabric.load``, of the one to resume."""
        return self.loader.epoch

    def set_epoch(self, epoch: int) -> None:
        self.loader.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Where the loop is, with the parts of all ranks on rank 0. All ranks call it, as
        ``fabric.save`` does."""
        return gather_state(self.loader.state_dict())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resumes on any number of ranks.

        Raises:
            MismatchError: the state is of another loader.
        """
        self.loader.load_state_dict(state)


def setup(fabric: Fabric, loader: DataLoader) -> FabricLoader:
    """A loader for a loop with Fabric, in place of ``fabric.setup_dataloaders(loader)``, which
    takes torch's alone. Its batches are on Fabric's device; ``fabric.save`` and ``fabric.load``
    take it with the model."""
    if not isinstance(loader, DataLoader):
        raise ConfigurationError(
            f"a {type(loader).__name__} is no evenstep.DataLoader; fabric.setup_dataloaders takes "
            "it"
        )
    return FabricLoader(fabric, loader)
