"""`evenstep.DataLoader`: a drop-in for torch's that forms batches after lengths are known."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from multiprocessing.util import Finalize
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DistributedSampler, IterableDataset

from evenstep.batch.loss_scale import LOSS_SCALING
from evenstep.batch.measure import Measure
from evenstep.batch.pad import PadCollator
from evenstep.batch.step_info import attach_step
from evenstep.errors import ConfigurationError
from evenstep.loader.exchange import Exchange, GlooExchange, LocalExchange
from evenstep.loader.feeder import Feeder
from evenstep.loader.iterator import StepIterator
from evenstep.loader.process import BatcherProcess
from evenstep.loader.spec import EpochSpec, LoaderSpec
from evenstep.loader.thread import BatcherThread
from evenstep.plan.fixed_batch import FixedBatch
from evenstep.plan.policy import Policy, check_at_least
from evenstep.protocol import EXHAUSTED_MODES

__all__ = ["DataLoader"]

_open: weakref.WeakSet[DataLoader] = weakref.WeakSet()
_closes_at_exit_of = -1  # the process that has `_close_all` registered


class DataLoader:
    """Batches of `dataset`, formed by `policy` from the lengths that samples turn out to have.

    Arguments that torch's DataLoader has mean what they mean there. Those that differ:

    Args:
        dataset: map-style or iterable; one processed sample each. An iterable one must yield this
            rank's (and worker's) share only, as with torch.
        policy: how groups are formed; all ranks must pass an equal one.
        batch_size: short for ``policy=FixedBatch(batch_size)``; not together with `policy`.
        collate_fn: list of samples -> batch; `PadCollator()` when None. It runs in the batcher
            process, once per step.
        shuffle, seed: without a `sampler`, the order is that of torch's ``DistributedSampler``:
            a function of (seed, epoch), padded to a multiple of the ranks.
        sampler: yields this rank's own indices. It runs in this process.
        drop_last: drop the tail that does not divide among the ranks, and, under `batch_size`, the
            last smaller batch.
        num_workers: processes that prepare samples; 0 prepares them in a thread of this process.
        prefetch_factor: chunks prepared ahead by each worker (2 when None).
        prefetch: finished steps kept ready.
        buffer_size: samples of the planning window on each rank. Up to twice as many are held.
        chunk_size: samples a worker hands over at a time.
        collate_threads: groups collated at a time, in threads.
        length_fn, supervised_fn, patches_fn: tokens, supervised tokens and vision patches of a
            sample; see `evenstep.batch.Measure` for what None finds by itself.
        loss_scaling: "token" (exact), "approximate", "sample" or "none"; see
            `evenstep.batch.loss_scale`.
        exhausted: "pad" or "stop", for ranks that run out before the others; see
            `evenstep.protocol.RankProtocol`.
        group: the data-parallel process group. None is the default group where torch.distributed
            is initialised, else this process alone; "local" is this process alone in any case.

    Raises:
        ConfigurationError: an argument is wrong or contradicts another.

    While iterating, on every rank: `SampleError`, `CollateError`, `MismatchError`, `PeerError`,
    `LoaderDiedError`.
    """

    def __init__(
        self,
        dataset: Any,
        *,
        policy: Policy | None = None,
        batch_size: int | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        shuffle: bool = False,
        seed: int = 0,
        sampler: Iterable[Any] | None = None,
        drop_last: bool = False,
        num_workers: int = 0,
        prefetch_factor: int | None = None,
        prefetch: int = 4,
        buffer_size: int = 1024,
        chunk_size: int | None = None,
        collate_threads: int = 1,
        length_fn: Callable[[Any], int] | None = None,
        supervised_fn: Callable[[Any], int] | None = None,
        patches_fn: Callable[[Any], int] | None = None,
        loss_scaling: str = "token",
        exhausted: str = "pad",
        pin_memory: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        persistent_workers: bool = False,
        group: dist.ProcessGroup | str | None = None,
    ) -> None:
        policy = _resolve_policy(policy, batch_size, drop_last)
        check_at_least(0, num_workers=num_workers, seed=seed)
        check_at_least(
            1,
            prefetch=prefetch,
            prefetch_factor=prefetch_factor,
            buffer_size=buffer_size,
            chunk_size=chunk_size,
            collate_threads=collate_threads,
        )
        if loss_scaling not in LOSS_SCALING:
            raise ConfigurationError(f"loss_scaling={loss_scaling!r} must be one of {LOSS_SCALING}")
        if exhausted not in EXHAUSTED_MODES:
            raise ConfigurationError(f"exhausted={exhausted!r} must be one of {EXHAUSTED_MODES}")
        if timeout < 0:
            raise ConfigurationError(f"timeout={timeout} must not be negative; 0 waits for ever")
        for name, value in (
            ("prefetch_factor", prefetch_factor),
            ("timeout", timeout),
            ("persistent_workers", persistent_workers),
            ("multiprocessing_context", multiprocessing_context),
        ):
            if value and not num_workers:
                raise ConfigurationError(f"{name}={value!r} needs num_workers of at least 1")
        if isinstance(group, str) and group != "local":
            raise ConfigurationError(f'group={group!r} must be a process group, None or "local"')
        iterable = isinstance(dataset, IterableDataset)
        if iterable and (shuffle or sampler is not None):
            raise ConfigurationError(
                "an iterable dataset gives its own order: leave out shuffle and sampler, and "
                "shuffle in the dataset"
            )
        if sampler is not None and shuffle:
            raise ConfigurationError("sampler gives the order, so shuffle=True contradicts it")
        if not iterable and not hasattr(dataset, "__getitem__"):
            raise ConfigurationError(
                f"dataset of type {type(dataset).__name__} has no __getitem__ and is no "
                "torch.utils.data.IterableDataset; it must be one or the other"
            )
        if not iterable and sampler is None and not hasattr(dataset, "__len__"):
            raise ConfigurationError("a map-style dataset without __len__ needs a sampler")

        self.dataset = dataset
        self.policy = policy
        self.collate_fn = PadCollator() if collate_fn is None else collate_fn
        self.shuffle = shuffle
        self.seed = int(seed)
        self.sampler = sampler
        self.drop_last = drop_last
        self.num_workers = int(num_workers)
        self.prefetch = int(prefetch)
        self.buffer_size = int(buffer_size)
        self.pin_memory = pin_memory
        self.exhausted = exhausted
        self.loss_scaling = loss_scaling
        self.persistent_workers = persistent_workers
        self._iterable = iterable
        self._group: Any = group
        self._collate_threads = collate_threads
        self._measure = Measure(
            length_fn=length_fn,
            supervised_fn=supervised_fn,
            patches_fn=patches_fn,
            count_patches=policy.counts_patches,
        )
        window = policy.window_size(buffer_size)
        # Large chunks save messages; several to a window let every worker have one in the making.
        self._chunk_size = chunk_size or max(1, min(16, window // max(2 * num_workers, 1)))
        self._prefetch_factor = prefetch_factor
        self._timeout = timeout
        self._worker_init_fn = worker_init_fn
        self._start_method = _start_method(multiprocessing_context)
        self._next_epoch = 0
        self._passes = 0
        self._exchange: Exchange | None = None
        self._batcher: BatcherProcess | None = None
        self._feeder: Feeder | None = None
        self._current: weakref.ref[StepIterator] | None = None
        self._owner = os.getpid()

    # Iterating

    def set_epoch(self, epoch: int) -> None:
        """Sets the number of the next pass, which decides its order together with the seed. Without
        a call each pass takes the number after the last one's."""
        check_at_least(0, epoch=epoch)
        self._next_epoch = int(epoch)

    def __iter__(self) -> Iterator[Any]:
        """Yields batches. Those that are mappings carry their `StepInfo`: see `pop_step`."""
        return _Batches(self.steps())

    def steps(self) -> StepIterator:
        """Begins a pass that yields (batch, `StepInfo`), and leaves any other under way."""
        if self._current is not None and (running := self._current()) is not None:
            running.close()
        exchange = self._connect()
        epoch = EpochSpec(serial=self._passes, epoch=self._next_epoch)
        self._passes += 1
        self._next_epoch += 1
        indices = None if self._iterable else self._indices(epoch.epoch)
        keep = self.persistent_workers and self.num_workers > 0
        batcher = self._start(exchange, keep)
        feeder = None
        if indices is not None:
            feeder = Feeder(batcher.feed, epoch.serial, indices, self._feeder if keep else None)
        self._feeder = feeder
        iterator = StepIterator(
            loader=self,
            batcher=batcher,
            keep_batcher=keep,
            exchange=exchange,
            feeder=feeder,
            epoch=epoch,
            pin_memory=self.pin_memory and torch.cuda.is_available(),
        )
        self._current = weakref.ref(iterator)
        return iterator

    def _start(self, exchange: Exchange, keep: bool) -> BatcherProcess | BatcherThread:
        """The batcher of the next pass: the last one's where it was kept and still lives."""
        if not self.num_workers:
            return BatcherThread(self._spec(exchange))
        if keep and self._batcher is not None and self._batcher.alive():
            return self._batcher
        batcher = BatcherProcess(self._spec(exchange))
        if keep:
            self._batcher = batcher
        return batcher

    def __len__(self) -> int:
        """Steps of a pass, where the policy has that known beforehand: `FixedBatch` over a sized
        dataset or sampler.

        Raises:
            TypeError: the number depends on lengths that are not known yet.
        """
        if isinstance(self.policy, FixedBatch) and not self._iterable:
            sampler = self.sampler if self.sampler is not None else self._default_sampler(0)
            count = len(sampler)  # type: ignore[arg-type]
            size = self.policy.batch_size
            return count // size if self.policy.drop_last else -(-count // size)
        raise TypeError(
            f"the number of steps under {type(self.policy).__name__} depends on lengths that are "
            "known only as samples are prepared; count steps or samples as they come"
        )

    def close(self) -> None:
        """Ends everything this loader runs. It can be iterated again afterwards."""
        if self._owner != os.getpid():
            return  # a copy in a forked child
        if self._current is not None and (running := self._current()) is not None:
            running.close()
        if self._batcher is not None:
            self._batcher.close()
            self._batcher = None
        if self._exchange is not None:
            self._exchange.close()
            self._exchange = None
        _open.discard(self)

    def __del__(self) -> None:
        if hasattr(self, "_owner"):
            self.close()

    # How it is put together

    def _alone(self) -> bool:
        """Whether this process feeds itself only."""
        distributed = dist.is_available() and dist.is_initialized()
        return self._group == "local" or (self._group is None and not distributed)

    def _place(self) -> tuple[int, int]:
        """(rank, world size), without a word to the other ranks."""
        if self._alone():
            return 0, 1
        return dist.get_rank(self._group), dist.get_world_size(self._group)

    def _connect(self) -> Exchange:
        if self._exchange is None:
            self._exchange = LocalExchange() if self._alone() else GlooExchange(self._group)
            _open.add(self)
            _close_at_exit()
        if self._exchange.failure is not None:
            raise self._exchange.failure
        return self._exchange

    def _default_sampler(self, epoch: int) -> DistributedSampler[Any]:
        rank, world_size = self._place()
        sampler: DistributedSampler[Any] = DistributedSampler(
            self.dataset,
            num_replicas=world_size,
            rank=rank,
            shuffle=self.shuffle,
            seed=self.seed,
            drop_last=self.drop_last,
        )
        sampler.set_epoch(epoch)
        return sampler

    def _indices(self, epoch: int) -> Iterable[Any]:
        if self.sampler is None:
            return self._default_sampler(epoch)
        set_epoch = getattr(self.sampler, "set_epoch", None)
        if callable(set_epoch):
            set_epoch(epoch)
        return self.sampler

    def _spec(self, exchange: Exchange) -> LoaderSpec:
        return LoaderSpec(
            dataset=self.dataset,
            iterable=self._iterable,
            policy=self.policy,
            rank=exchange.rank,
            world_size=exchange.world_size,
            seed=self.seed,
            buffer_size=self.buffer_size,
            exhausted=self.exhausted,
            loss_scaling=self.loss_scaling,
            prefetch=self.prefetch,
            collate_fn=self.collate_fn,
            collate_threads=self._collate_threads,
            measure=self._measure,
            chunk_size=self._chunk_size,
            num_workers=self.num_workers,
            prefetch_factor=self._prefetch_factor,
            timeout=self._timeout,
            worker_init_fn=self._worker_init_fn,
            start_method=self._start_method,
            persistent_workers=self.persistent_workers,
            compared=self._compared(),
        )

    def _dataset_size(self) -> int | None:
        # The length of an iterable dataset is that of a rank's share, so it may differ.
        sized = not self._iterable and hasattr(self.dataset, "__len__")
        return len(self.dataset) if sized else None

    def _compared(self) -> Mapping[str, Any]:
        return {
            "dataset size": self._dataset_size(),
            "loss_scaling": self.loss_scaling,
            "shuffle": self.shuffle,
            "drop_last": self.drop_last,
        }


class _Batches(Iterator[Any]):
    """Batches with their `StepInfo` inside."""

    def __init__(self, steps: StepIterator) -> None:
        self._steps = steps

    def __next__(self) -> Any:
        batch, step = next(self._steps)
        attach_step(batch, step)
        return batch

    def close(self) -> None:
        self._steps.close()


def _resolve_policy(policy: Policy | None, batch_size: int | None, drop_last: bool) -> Policy:
    if policy is not None and batch_size is not None:
        raise ConfigurationError(
            f"batch_size={batch_size} contradicts policy={policy!r}, which decides how many "
            "samples a batch has; leave batch_size out, or use "
            "policy=evenstep.FixedBatch(batch_size)"
        )
    if batch_size is not None:
        return FixedBatch(batch_size, drop_last=drop_last)
    if policy is None:
        raise ConfigurationError(
            "no policy: pass policy=evenstep.TokenBudget(max_tokens=...) or batch_size=..."
        )
    if not isinstance(policy, Policy):
        raise ConfigurationError(f"policy={policy!r} is no evenstep policy object")
    return policy


def _start_method(context: Any) -> str | None:
    if context is None or isinstance(context, str):
        return context
    return str(context.get_start_method())


def _close_at_exit() -> None:
    """Has all loaders closed before multiprocessing waits for its children to end, which it does in
    the main process and in ranks that are themselves its children."""
    global _closes_at_exit_of
    if _closes_at_exit_of != os.getpid():
        _closes_at_exit_of = os.getpid()
        Finalize(None, _close_all, exitpriority=100)


def _close_all() -> None:
    for loader in list(_open):
        loader.close()
