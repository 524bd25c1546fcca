"""`LoaderAttributes`: the arguments of a loader, read by the names that torch's loader has."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterable
from dataclasses import replace
from types import GenericAlias
from typing import Any

from torch.utils.data import BatchSampler

from evenstep.batch.measure import Measure
from evenstep.errors import ConfigurationError
from evenstep.loader.options import LoaderOptions
from evenstep.loader.resume.epochs import Epochs
from evenstep.plan.policies.fixed_batch import FixedBatch
from evenstep.plan.policy import Policy

_WORKERS_PREFETCH = 2  # torch's default


def _option(name: str) -> Any:
    """An attribute that a loader's options hold. A new value counts from the next batcher on."""

    def read(loader: LoaderAttributes) -> Any:
        return getattr(loader._options, name)

    def write(loader: LoaderAttributes, value: Any) -> None:
        loader._options = replace(loader._options, **{name: value})

    return property(read, write)


def _fixed(name: str, read: Callable[[Any], Any]) -> Any:
    """An attribute that cannot be set."""

    def refuse(loader: LoaderAttributes, value: Any) -> None:
        raise ConfigurationError(
            f"{name} cannot be set to {value!r} on a loader that is built, as its epochs depend on "
            f"it; build another with {name}="
        )

    return property(read, refuse)


def _sized(loader: Any) -> LoaderOptions:
    options: LoaderOptions = loader._options_for(loader.world_size)
    return options


def _batch_size(loader: LoaderAttributes) -> int | None:
    return loader.policy.batch_size if isinstance(loader.policy, FixedBatch) else None


class LoaderAttributes:
    """The arguments of a loader as attributes."""

    # For annotations such as `DataLoader[Sample]`, which torch's class takes.
    __class_getitem__: Any = classmethod(GenericAlias)

    _options: LoaderOptions
    _epochs: Epochs
    _batch_sampler: BatchSampler | None

    dataset: Any = _fixed("dataset", lambda loader: loader._epochs.dataset)
    policy: Policy = _fixed("policy", lambda loader: loader._epochs.policy)
    sized_policy: Policy = _fixed("sized_policy", lambda loader: _sized(loader).policy)
    """The policy with the `target_tokens` that were chosen for `update_tokens`."""
    seed: int = _fixed("seed", lambda loader: loader._epochs.seed)
    shuffle: bool = _fixed("shuffle", lambda loader: loader._epochs.shuffle)
    batch_size: int | None = _fixed("batch_size", _batch_size)
    """None under any policy but `FixedBatch`."""
    drop_last: bool = _fixed("drop_last", lambda loader: loader._epochs.drop_last)
    sampler: Iterable[Any] | None = _fixed("sampler", lambda loader: loader._epochs.sampler)
    """None where the order is the built-in one, or the dataset's own."""
    batch_sampler: BatchSampler | None = _fixed(
        "batch_sampler", lambda loader: loader._batch_sampler
    )
    """The one that was given."""
    persistent_workers: bool = _fixed(
        "persistent_workers", lambda loader: loader._options.persistent_workers
    )

    collate_fn: Callable[[list[Any]], Any] = _option("collate_fn")
    collate_threads: int = _option("collate_threads")
    measure: Measure = _option("measure")
    source: Any = _fixed("source", lambda loader: loader._options.source)
    """The dataset as samples are read from it: images that are made late are not decoded."""
    prepare: Callable[[Any, str], Any] | None = _fixed(
        "prepare", lambda loader: loader._options.prepare
    )
    """Makes a sample of what the dataset returns; None where that is a sample."""
    blank: Any = _fixed("blank", lambda loader: loader._options.blank)
    """An `evenstep.batch.blank.Blank`; None, or False, where there is none."""
    num_workers: int = _option("num_workers")
    worker_init_fn: Callable[[int], None] | None = _option("worker_init_fn")
    timeout: float = _option("timeout")
    prefetch: int = _option("prefetch")
    buffer_size: int | str = _option("buffer_size")
    buffer_bytes: int = _option("buffer_bytes")
    update_tokens: int | str | None = _option("update_tokens")
    exhausted: str = _option("exhausted")
    loss_scaling: str = _option("loss_scaling")

    in_order: bool = _fixed("in_order", lambda loader: True)

    @property
    def accumulate(self) -> int:
        """Where `update_tokens` decides, what was chosen. A new value takes the place of both."""
        return _sized(self).accumulate

    @accumulate.setter
    def accumulate(self, steps: int) -> None:
        self._options = replace(self._options, accumulate=steps, update_tokens=None)

    @property
    def prefetch_factor(self) -> int | None:
        """Chunks prepared ahead by each worker; None without workers."""
        return self._options.prefetch_factor or (_WORKERS_PREFETCH if self.num_workers else None)

    @property
    def multiprocessing_context(self) -> Any:
        """The context that batcher and workers start in; None for the default way."""
        method = self._options.start_method
        return None if method is None else multiprocessing.get_context(method)
