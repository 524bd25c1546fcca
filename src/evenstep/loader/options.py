"""`LoaderOptions`: what the arguments of a `DataLoader` ask for, checked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from torch.utils.data import IterableDataset

from evenstep.batch.blank import Blank
from evenstep.batch.loss_scale import LOSS_SCALING
from evenstep.batch.measure import Measure
from evenstep.batch.prepare import PreparingCollator
from evenstep.loader.arguments import (
    check_context_parallel,
    check_replay,
    check_workers,
)
from evenstep.plan.argument_checks import check_at_least, check_one_of, check_seconds
from evenstep.plan.policy import Policy
from evenstep.plan.update_size import check_update_tokens
from evenstep.protocol import EXHAUSTED_MODES
from evenstep.protocol.window_size import AUTO, check_buffer_size

_INTEGERS = ("seed", "buffer_bytes", "num_workers", "accumulate", "prefetch", "skip_bad_samples")


@dataclass(frozen=True, kw_only=True)
class LoaderOptions:
    """Options that the trainer process and the batcher share; see `DataLoader`.

    Picklable as far as the dataset and the functions are.

    Raises:
        ConfigurationError: a value is wrong or contradicts another.
    """

    dataset: Any
    policy: Policy
    seed: int
    buffer_size: int | str
    buffer_bytes: int
    accumulate: int
    update_tokens: int | str | None
    exhausted: str
    loss_scaling: str
    prefetch: int
    collate_fn: Callable[[list[Any]], Any]
    blank: Blank | Literal[False] | None
    """None where there is none and False where none is wanted."""
    collate_threads: int
    measure: Measure
    chunk_size: int
    num_workers: int
    prefetch_factor: int | None
    timeout: float
    worker_init_fn: Callable[[int], None] | None
    start_method: str | None
    persistent_workers: bool
    skip_bad_samples: int
    replay: bool

    def __post_init__(self) -> None:
        check_at_least(0, seed=self.seed, skip_bad_samples=self.skip_bad_samples)
        check_at_least(
            1,
            prefetch=self.prefetch,
            prefetch_factor=self.prefetch_factor,
            accumulate=self.accumulate,
            buffer_bytes=self.buffer_bytes,
            chunk_size=self.chunk_size,
            collate_threads=self.collate_threads,
        )
        check_buffer_size(self.buffer_size)
        check_update_tokens(self.update_tokens)
        check_one_of(LOSS_SCALING, loss_scaling=self.loss_scaling)
        check_one_of(EXHAUSTED_MODES, exhausted=self.exhausted)
        check_context_parallel(self.policy, self.loss_scaling)
        check_replay(self.replay, iterable=self.iterable)
        check_seconds("waits for ever", timeout=self.timeout)
        check_workers(
            self.num_workers,
            prefetch_factor=self.prefetch_factor,
            persistent_workers=self.persistent_workers,
            multiprocessing_context=self.start_method,
        )
        for name in _INTEGERS:  # NumPy's integers would not be JSON-able in a state
            object.__setattr__(self, name, int(getattr(self, name)))
        if self.buffer_size != AUTO:
            object.__setattr__(self, "buffer_size", int(self.buffer_size))

    @property
    def iterable(self) -> bool:
        """Whether the dataset is iterable, not map-style."""
        return isinstance(self.dataset, IterableDataset)

    @property
    def source(self) -> Any:
        """The dataset as samples are read from it: see `PreparingCollator.undecoded`."""
        if isinstance(self.collate_fn, PreparingCollator):
            return self.collate_fn.undecoded(self.dataset)
        return self.dataset

    @property
    def prepare(self) -> Callable[[Any, str], Any] | None:
        """Makes a sample of what the dataset returns, and the name that errors call it, where the
        collate function does that: see `evenstep.PreparingCollator`. It runs in the workers."""
        return getattr(self.collate_fn, "prepare", None)

    @property
    def keeps_workers(self) -> bool:
        """Whether one batcher, and its workers, serve all passes."""
        return self.persistent_workers and self.num_workers > 0
