"""`RankShare`: what a rank reads of an iterable dataset."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch.utils.data import IterableDataset

from evenstep.errors import ConfigurationError


class RankShare(IterableDataset[Any]):
    """Every W-th sample: Trainer's iterable datasets yield all samples on all W ranks."""

    def __init__(self, dataset: Any, rank: int, world_size: int) -> None:
        self._dataset = dataset
        self._rank = rank
        self._world_size = world_size

    def __iter__(self) -> Iterator[Any]:
        for number, sample in enumerate(self._dataset):
            if number % self._world_size == self._rank:
                yield sample


def share_of_rank(dataset: Any, rank: int, world_size: int) -> Any:
    """The rank's share of an iterable dataset; a Hugging Face one divides itself.

    Raises:
        ConfigurationError: the dataset has a state, which a share of it cannot go back to.
    """
    if world_size == 1:
        return dataset
    if type(dataset).__module__.partition(".")[0] == "datasets":
        from datasets.distributed import split_dataset_by_node

        return split_dataset_by_node(dataset, rank, world_size)
    if hasattr(dataset, "state_dict"):
        raise ConfigurationError(
            f"{type(dataset).__name__} has a state, and yields all samples on all ranks; yield "
            "this rank's share, and return evenstep.DataLoader(dataset, ...) from the trainer's "
            "get_train_dataloader"
        )
    return RankShare(dataset, rank, world_size)
