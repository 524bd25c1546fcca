"""`evenstep.wrap`: replaces an existing torch DataLoader."""

from __future__ import annotations

from typing import Any

from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import IterableDataset, default_collate, default_convert

from evenstep.errors import ConfigurationError
from evenstep.loader.dataloader import DataLoader
from evenstep.loader.row_order import ORDERS, given_order
from evenstep.plan.policy import Policy


def wrap(loader: TorchDataLoader[Any], *, policy: Policy, **options: Any) -> DataLoader:
    """A loader over the same dataset, in the same order, with batches formed by `policy`.

    The dataset, sampler, collate function, seed, workers, pinning, timeout, start method and
    persistence are taken over. The rows of torch's own samplers over the whole dataset, and those
    of a batch sampler, are shared by the ranks; any other sampler is trusted to yield this rank's
    share. The batch size is not taken over: `policy` decides it. The torch loader itself is not
    changed.

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
        order = given_order(loader)
        # These exclude each other, so a given one replaces the others.
        if any(options.get(name) not in (None, False) for name in ORDERS):
            order = {name: value for name, value in order.items() if name not in ORDERS}
        taken.update(order)
    return DataLoader(loader.dataset, policy=policy, **{**taken, **options})
