"""`evenstep.wrap`: replaces an existing torch DataLoader."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from torch.utils.data import (
    BatchSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    default_collate,
    default_convert,
)
from torch.utils.data import DataLoader as TorchDataLoader

from evenstep.errors import ConfigurationError
from evenstep.loader.dataloader import DataLoader
from evenstep.plan.policy import Policy


def wrap(loader: TorchDataLoader[Any], *, policy: Policy, **options: Any) -> DataLoader:
    """A loader over the same dataset, in the same order, with batches formed by `policy`.

    The dataset, sampler, collate function, seed, workers, pinning, timeout, start method and
    persistence are taken over. Where the torch loader has its stock sampler, evenstep shards by
    rank itself; any other sampler is trusted to yield this rank's share. The batch size is not:
    `policy` decides it. The torch loader itself is not changed.

    Args:
        loader: a plain `torch.utils.data.DataLoader`, not one that a framework has rebuilt.
        policy: how groups are formed.
        **options: arguments of `evenstep.DataLoader`; they win over what the torch loader has.

    Raises:
        ConfigurationError: `loader` is not a torch DataLoader, or an option is wrong.
    """
    if not isinstance(loader, TorchDataLoader):
        raise ConfigurationError(
            f"wrap takes a torch.utils.data.DataLoader, got {type(loader).__name__}; wrap before a "
            "framework does, or build evenstep.DataLoader yourself"
        )
    taken: dict[str, Any] = {
        "num_workers": loader.num_workers,
        "pin_memory": loader.pin_memory,
        "worker_init_fn": loader.worker_init_fn,
        "timeout": loader.timeout,
    }
    if loader.generator is not None and "seed" not in options:
        taken["generator"] = loader.generator
    if loader.num_workers and options.get("num_workers", 1):
        taken["prefetch_factor"] = loader.prefetch_factor
        taken["multiprocessing_context"] = loader.multiprocessing_context
        taken["persistent_workers"] = loader.persistent_workers
    # These two are torch's defaults, for users who passed no function.
    if loader.collate_fn not in (default_collate, default_convert):
        taken["collate_fn"] = loader.collate_fn
    if not isinstance(loader.dataset, IterableDataset):
        order = _order(loader)
        # A sampler and shuffling exclude each other, so a given one replaces the other.
        if options.get("sampler") is not None or options.get("shuffle"):
            order.pop("sampler", None)
            order.pop("shuffle", None)
        taken.update(order)
    return DataLoader(loader.dataset, policy=policy, **{**taken, **options})


def _order(loader: TorchDataLoader[Any]) -> dict[str, Any]:
    batch_sampler = loader.batch_sampler
    if batch_sampler is None:
        sampler: Any = loader.sampler
    elif type(batch_sampler) is BatchSampler:
        sampler = batch_sampler.sampler
    else:
        return {"sampler": _Flattened(batch_sampler)}
    if type(sampler) is SequentialSampler:
        return {"shuffle": False, "drop_last": loader.drop_last}
    if type(sampler) is RandomSampler and not sampler.replacement:
        return {"shuffle": True, "drop_last": loader.drop_last}
    return {"sampler": sampler}


class _Flattened:
    """The indices of a batch sampler, one by one."""

    def __init__(self, batches: Iterable[Any]) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[Any]:
        for batch in self._batches:
            yield from batch

    def set_epoch(self, epoch: int) -> None:
        set_epoch = getattr(self._batches, "set_epoch", None)
        if callable(set_epoch):
            set_epoch(epoch)
