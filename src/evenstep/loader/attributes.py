"""`LoaderAttributes`: the arguments of a loader, read by the names that torch's loader has."""

from __future__ import annotations

import multiprocessing
import operator
from collections.abc import Callable, Iterable
from dataclasses import replace
from types import GenericAlias
from typing import Any

from evenstep.batch.measure import Measure
from evenstep.errors import ConfigurationError
from evenstep.loader.options import Faults, LoaderOptions, Memory
from evenstep.loader.resume.epochs import Epochs
from evenstep.plan.policy import Policy
from evenstep.plan.value_checks import NamesArguments

_WORKERS_PREFETCH = 2  # torch's default


def _attribute(path: str, *, settable: bool = False) -> Any:
    """An attribute that is read from one of the loader's own objects.

    Args:
        path: of the value, from the loader.
        settable: whether a new value may be set: for the next batcher.
    """
    name = path.rpartition(".")[2].lstrip("_")

    def write(loader: LoaderAttributes, value: Any) -> None:
        if not settable:
            raise ConfigurationError(
                f"{name} cannot be set to {value!r} on a loader that is built, as its epochs "
                f"depend on it; build another with {name}="
            )
        loader._options = replace(loader._options, **{name: value})

    return property(operator.attrgetter(path), write)


class LoaderAttributes(NamesArguments):
    """The arguments of a loader as attributes."""

    # For annotations such as `DataLoader[Sample]`, which torch's class takes.
    __class_getitem__: Any = classmethod(GenericAlias)

    _options: LoaderOptions
    _epochs: Epochs
    _batch_sampler: Iterable[Any] | None

    dataset: Any = _attribute("_epochs.dataset")
    policy: Policy = _attribute("_epochs.policy")
    sized_policy: Policy = _attribute("_learned_options.policy")
    """The policy with the `target_tokens` that were chosen for `update_tokens`. See `learn`."""
    seed: int = _attribute("_epochs.seed")
    shuffle: bool = _attribute("_epochs.shuffle")
    batch_size: int | None = _attribute("_epochs.batch_size")
    """None under any policy but `FixedBatch`."""
    drop_last: bool = _attribute("_epochs.drop_last")
    sampler: Iterable[Any] | None = _attribute("_epochs.sampler")
    """None where the order is the built-in one, or the dataset's own."""
    batch_sampler: Iterable[Any] | None = _attribute("_batch_sampler")
    """The one that was given."""
    persistent_workers: bool = _attribute("_options.persistent_workers")

    collate_fn: Callable[[list[Any]], Any] = _attribute("_options.collate_fn", settable=True)
    measure: Measure = _attribute("_options.measure", settable=True)
    blank: Any = _attribute("_learned_options.blank")
    """An `evenstep.batch.blank.Blank`; None, or False, where there is none. See `learn`."""
    num_workers: int = _attribute("_options.num_workers", settable=True)
    worker_init_fn: Callable[[int], None] | None = _attribute(
        "_options.worker_init_fn", settable=True
    )
    timeout: float = _attribute("_options.timeout", settable=True)
    memory: Memory = _attribute("_options.memory", settable=True)
    faults: Faults = _attribute("_options.faults", settable=True)
    update_tokens: int | str | None = _attribute("_options.update_tokens", settable=True)
    too_long: str = _attribute("_options.too_long")
    loss_scaling: str = _attribute("_options.loss_scaling", settable=True)

    in_order: bool = property(lambda loader: True)  # type: ignore[assignment]

    @property
    def _learned_options(self) -> LoaderOptions:
        raise NotImplementedError

    @property
    def accumulate(self) -> int:
        """Where `update_tokens` decides, what was chosen: see `learn`. A new value takes the place
        of both.

        Raises:
            ConfigurationError: it changes, as `update_tokens` is given, and larger groups come.
        """
        options = self._learned_options
        if len(options.sizes) > 1:
            raise ConfigurationError(
                f"an update of update_tokens={options.update_tokens} has fewer steps once "
                'max_tokens="auto" has found that larger groups fit, and a trainer needs one '
                "number: pass accumulate= (gradient_accumulation_steps) in place of update_tokens"
            )
        return options.accumulate

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
