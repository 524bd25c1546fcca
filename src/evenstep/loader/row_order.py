"""The rows of samplers and batch samplers, and whether they are those of all ranks or of one.

A policy forms the batches, so a batch sampler gives rows and their order alone. Its rows are dealt
to the ranks, since most batch samplers know of none; the ranks compare their orders, so one that
does is an error, unless it is known or said to yield the rows of one rank.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy.typing as npt
from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler
from torch.utils.data import DataLoader as TorchDataLoader

from evenstep.errors import ConfigurationError
from evenstep.loader.resume.sample_order import as_array, size_of
from evenstep.plan.policy import Policy

ORDERS = ("sampler", "batch_sampler", "shuffle")
"""Arguments of `DataLoader` that each give the order."""


class Rows:
    """The dataset indices of a batch sampler, one by one."""

    def __init__(self, batches: Iterable[Any]) -> None:
        self.batches = batches
        self._epoch: int | None = None
        self._drawn: npt.NDArray[Any] | None = None

    def set_epoch(self, epoch: int) -> None:
        if epoch == self._epoch:
            return
        self._epoch, self._drawn = epoch, None
        for sampler in _chain(self.batches):
            if callable(set_epoch := getattr(sampler, "set_epoch", None)):
                set_epoch(epoch)

    def __iter__(self) -> Iterator[Any]:
        if self._drawn is not None:
            yield from self._drawn.tolist()
            return
        for batch in self.batches:
            yield from batch

    def __len__(self) -> int:
        """Draws the epoch, which is kept until the next, as batches may be of any size.

        Raises:
            TypeError: the batch sampler has no length, and so may have no end.
        """
        if size_of(self.batches) is None:
            raise TypeError(f"{type(self.batches).__name__} has no length")
        if self._drawn is None:
            self._drawn = as_array([*iter(self)])
        return len(self._drawn)


def given_order(loader: TorchDataLoader[Any]) -> dict[str, Any]:
    """The order of a torch loader over a map-style dataset, as arguments of `DataLoader`. That of
    torch's own samplers over the whole dataset is evenstep's, too."""
    inner: Any = loader.batch_sampler
    sampler: Any = loader.sampler
    if inner is not None:
        inner = _of_all_ranks(inner)
        sampler = inner.sampler if _is_plain(inner) else None
    if draws_all(sampler, loader.dataset):
        shuffle = isinstance(sampler, RandomSampler)
        return {"shuffle": shuffle, "drop_last": getattr(inner, "drop_last", False)}
    # The batch sampler may be that of torch, around a sampler that was given.
    given = inner is not None and loader.batch_size is None
    return {"batch_sampler": inner} if given else {"sampler": sampler}


def draws_all(sampler: Any, dataset: Any) -> bool:
    """Whether a sampler of torch itself draws every row once."""
    if type(sampler) is SequentialSampler:
        return len(sampler) == size_of(dataset)
    if type(sampler) is RandomSampler and not sampler.replacement:
        return len(sampler) == len(sampler.data_source) == size_of(dataset)
    return False


def of_one_rank(sampler: Any) -> bool:
    """Whether a sampler, or one inside it, is known to yield the rows of one rank of several: as
    torch's ``DistributedSampler``, or Accelerate's shards."""
    return any(
        isinstance(ranks := getattr(part, names[0], None), int)
        and ranks > 1
        and hasattr(part, names[1])
        for part in _chain(sampler)
        for names in (("num_replicas", "rank"), ("num_processes", "process_index"))
    )


def name_of(sampler: Any) -> str:
    """Its type, as users know it."""
    return type(sampler.batches if isinstance(sampler, Rows) else sampler).__qualname__


def resolve_batch_sampler(
    batch_sampler: Any,
    *,
    sampler: Any,
    batch_size: int | None,
    drop_last: bool,
    shard_sampler: bool | None,
    policy: Policy | None,
    shuffle: bool | None,
) -> tuple[Any, int | None, bool, bool]:
    """Sampler, batch size, whether the last smaller batch is dropped, and whether ranks share the
    sampler."""
    if batch_sampler is None:
        return sampler, batch_size, drop_last, bool(shard_sampler)
    given = {"sampler": sampler, "batch_size": batch_size, "drop_last": drop_last}
    for name, value in {**given, "shuffle": shuffle}.items():
        if value is not None and value is not False:
            raise ConfigurationError(
                f"{name}={value!r} contradicts batch_sampler, which has it; leave out one of them"
            )
    inner = _of_all_ranks(batch_sampler)
    plain = _is_plain(inner)
    if policy is None and not plain:
        raise ConfigurationError(
            f"batch_sampler of type {type(inner).__name__} forms batches itself, which is what the "
            "policy does here; pass a policy=, too, such as evenstep.Even(max_tokens=...), for "
            "batches of its rows in their order"
        )
    if shard_sampler is None:
        shard_sampler = not of_one_rank(inner)
    if not plain:
        return Rows(inner), None, False, shard_sampler
    return inner.sampler, None if policy else inner.batch_size, inner.drop_last, shard_sampler


def _is_plain(batch_sampler: Any) -> bool:
    """Whether it cuts the rows of its `sampler` into batches, and does nothing else."""
    return getattr(type(batch_sampler), "__iter__", None) is BatchSampler.__iter__


def _of_all_ranks(batch_sampler: Any) -> Any:
    """The batch sampler of the whole job inside Accelerate's shards of it."""
    while all(
        hasattr(batch_sampler, name) for name in ("batch_sampler", "num_processes", "process_index")
    ):
        batch_sampler = batch_sampler.batch_sampler
    return batch_sampler


def _chain(sampler: Any) -> Iterator[Any]:
    """A sampler, the one inside it, and so on."""
    seen: list[Any] = []
    while sampler is not None and not any(sampler is one for one in seen):
        seen.append(sampler)
        yield sampler
        inner = getattr(sampler, "batch_sampler", None)
        sampler = getattr(sampler, "sampler", None) if inner is None else inner
