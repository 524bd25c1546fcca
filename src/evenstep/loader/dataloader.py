"""`evenstep.DataLoader`: a drop-in for torch's that forms batches after lengths are known."""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist

from evenstep.batch.measure import Measure
from evenstep.batch.step_info import StepInfo, attach_step
from evenstep.data.fingerprint import dataset_size
from evenstep.errors import ConfigurationError, MismatchError
from evenstep.loader.arguments import (
    check_choices,
    check_context_parallel,
    check_order,
    check_workers,
    resolve_collate,
    resolve_policy,
    resolve_seed,
    start_method,
)
from evenstep.loader.batcher.pipeline import End
from evenstep.loader.batcher.process import BatcherProcess
from evenstep.loader.batcher.progress import BadSample, StepProgress
from evenstep.loader.batcher.spec import EpochSpec, LoaderSpec
from evenstep.loader.batcher.thread import BatcherThread
from evenstep.loader.feeder import Feeder
from evenstep.loader.iterator import StepIterator
from evenstep.loader.resume.epoch_progress import EpochProgress
from evenstep.loader.resume.epochs import Epochs
from evenstep.loader.resume.precomputed import PlannedShare, check_planned
from evenstep.loader.resume.rewind import OwnPlace
from evenstep.loader.resume.sample_order import EpochShare, remaining_indices
from evenstep.loader.resume.state import LoaderState, check_job, to_dict
from evenstep.loader.resume.step_count import StepCount
from evenstep.loader.step_log import StepLog
from evenstep.loader.transport.at_exit import close_at_exit, closed
from evenstep.loader.transport.cp_peers import GroupPlace
from evenstep.loader.transport.rank_exchange import GlooExchange, LocalExchange, RankExchange
from evenstep.loader.workers.iterable import has_state
from evenstep.plan.argument_checks import check_at_least
from evenstep.plan.policy import Policy

__all__ = ["DataLoader"]

logger = logging.getLogger("evenstep")


class DataLoader:
    """Batches of `dataset`, formed by `policy` from the lengths that samples turn out to have.

    Arguments that torch's DataLoader has mean what they mean there. Those that differ:

    Args:
        dataset: map-style or iterable; one processed sample each. An iterable one must yield this
            rank's (and worker's) share only, as with torch.
        policy: how groups are formed; all ranks must pass an equal one.
        batch_size: short for ``policy=FixedBatch(batch_size)``; not together with `policy`.
        collate_fn: list of samples -> batch. None is `PadCollator()`, or `PackCollator()` where the
            policy forms packed groups. It runs in the batcher process, once per step.
        shuffle, seed: without a `sampler`, the order is that of torch's ``DistributedSampler``:
            a function of (seed, epoch), padded to a multiple of the ranks.
        generator: its initial seed is the seed, in place of `seed`. Nothing is drawn from it.
        sampler: yields this rank's own indices. It runs in this process. To resume, its order must
            be a function of (seed, epoch).
        shard_sampler: `sampler` yields the same indices, those of the whole job, on every rank, and
            they are dealt out to the ranks. An epoch can then be resumed by another number of them.
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
        skip_bad_samples: in each epoch leave out up to this many samples of a rank that cannot be
            used: that the dataset raises for, have no tokens or are too long. Each is logged and
            kept in `skipped`; one more is an error. An iterable dataset that raises has ended, so
            that is an error in any case.
        replay: resume an iterable dataset that has no ``state_dict`` by reading the epoch again
            from its beginning and throwing away what came before.
        exhausted: "pad" or "stop", for ranks that run out before the others; see
            `evenstep.protocol.RankProtocol`.
        group: the process group of all ranks that train on these steps: the data-parallel ones,
            and those that share micro-batches with them (`WorkloadPacking.context_parallel`), next
            to each other. None is the default group where torch.distributed is initialised, else
            this process alone; "local" is this process alone in any case.

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
        generator: torch.Generator | None = None,
        sampler: Iterable[Any] | None = None,
        shard_sampler: bool = False,
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
        skip_bad_samples: int = 0,
        replay: bool = False,
        exhausted: str = "pad",
        pin_memory: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        persistent_workers: bool = False,
        group: dist.ProcessGroup | str | None = None,
    ) -> None:
        policy = resolve_policy(policy, batch_size, drop_last)
        seed = resolve_seed(seed, generator)
        check_at_least(0, seed=seed, skip_bad_samples=skip_bad_samples)
        check_at_least(
            1,
            prefetch=prefetch,
            prefetch_factor=prefetch_factor,
            buffer_size=buffer_size,
            chunk_size=chunk_size,
            collate_threads=collate_threads,
        )
        check_choices(loss_scaling=loss_scaling, exhausted=exhausted, group=group)
        check_context_parallel(policy, loss_scaling)
        check_workers(
            num_workers,
            prefetch_factor=prefetch_factor,
            timeout=timeout,
            persistent_workers=persistent_workers,
            multiprocessing_context=multiprocessing_context,
        )
        self._iterable = check_order(
            dataset, shuffle=shuffle, sampler=sampler, shard_sampler=shard_sampler, replay=replay
        )
        check_planned(
            policy,
            dataset,
            iterable=self._iterable,
            sampler=sampler,
            shuffle=shuffle,
            drop_last=drop_last,
        )
        self.dataset = dataset
        self.policy = policy
        self.collate_fn = resolve_collate(policy, collate_fn)
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
        self.skipped: list[BadSample] = []
        """Samples left out so far."""
        self._skip_bad_samples = int(skip_bad_samples)
        self._replay = replay
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
        several = max(1, min(16, window // max(2 * num_workers, 1)))
        self._chunk_size = int(chunk_size or several)
        self._given_chunk_size = chunk_size is not None
        self._prefetch_factor = prefetch_factor
        self._timeout = timeout
        self._worker_init_fn = worker_init_fn
        self._start_method = start_method(multiprocessing_context)
        self._epochs = Epochs(
            dataset=dataset,
            policy=policy,
            iterable=self._iterable,
            sampler=sampler,
            shard_sampler=shard_sampler,
            shuffle=shuffle,
            seed=self.seed,
            drop_last=drop_last,
        )
        self._position = self._epochs.begin(0)
        self._resumes = False  # the next pass goes on from `_position`
        self._next_epoch = 0
        self._passes = 0
        self._step_count = StepCount(self._epochs)
        self._exchange: RankExchange | None = None
        self._batcher: BatcherProcess | None = None
        self._feeder: Feeder | None = None
        self._current: weakref.ref[StepIterator] | None = None
        self._dealt: tuple[int, int] | None = None
        """(rank, world size) that `_position` is of; None for any."""
        keeps_place = self._iterable and has_state(dataset)
        self._own_place = OwnPlace(dataset) if keeps_place else None
        self._step_log = StepLog.wanted(policy.fingerprint)
        self._owner = os.getpid()

    # Iterating

    @property
    def epoch(self) -> int:
        """Number of the next pass; while one is under way, of the one after it."""
        return self._next_epoch

    def set_epoch(self, epoch: int) -> None:
        """Sets the number of the next pass, which decides its order together with the seed. Without
        a call each pass takes the number after the last one's.

        Raises:
            MismatchError: a state was loaded that is in the middle of another epoch.
        """
        check_at_least(0, epoch=epoch)
        position = self._position
        if self._resumes and not position.untouched and epoch != position.epoch:
            raise MismatchError(
                f"set_epoch({epoch}), but the state that was loaded is at step {position.step} of "
                f"epoch {position.epoch}, which would be lost; begin the loop with epoch "
                "loader.epoch"
            )
        self._next_epoch = int(epoch)
        # After a pass that was left the next one is a new epoch, and so is the state.
        if (position.untouched or not self._resumes) and not self._under_way():
            self._position = self._epochs.begin(self._next_epoch)

    def __iter__(self) -> Iterator[Any]:
        """Yields batches. Those that are mappings carry their `StepInfo`: see `pop_step`."""
        return _Batches(self.steps())

    def steps(self) -> StepIterator:
        """Begins a pass that yields (batch, `StepInfo`), and leaves any other under way. The first
        pass after `load_state_dict` goes on with the epoch of the state."""
        self._leave()
        exchange = self._connect()
        if not self._resumes or self._position.untouched:
            self._position = self._epochs.begin(self._next_epoch)
        position, place = self._position, self._place()
        if self._dealt not in (None, place) and self._resumes and not position.untouched:
            raise MismatchError(
                f"the state was loaded by what was then rank {self._dealt[0]} of {self._dealt[1]}, "
                f"and this is rank {place[0]} of {place[1]} now; call load_state_dict after "
                "torch.distributed.init_process_group"
            )
        share = self._epochs.share(position, *place)
        epoch = self._epoch_spec(position, share)
        self._passes += 1
        keep = self.persistent_workers and self.num_workers > 0
        astray = self._own_place is not None and self._own_place.begin(here=not self.num_workers)
        if self._batcher is not None and (position.sources is not None or astray):
            # Workers are told where to begin when they start.
            self._close_batcher()
        batcher = self._start(exchange, keep)
        feeder = None
        if share is not None:
            indices = remaining_indices(share, position.remaining, position.witness)
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
            received=self._received,
            ended=self._ended,
        )
        self._current = weakref.ref(iterator)
        # Not before: what could not be begun is begun again by the next call.
        self._resumes, self._dealt = False, place
        self._next_epoch = position.epoch + 1
        return iterator

    def _close_batcher(self) -> None:
        if self._batcher is not None:
            self._batcher.close()
            self._batcher = None

    def _under_way(self) -> bool:
        running = self._current() if self._current is not None else None
        return running is not None and not running.closed

    def _leave(self) -> None:
        if self._current is not None and (running := self._current()) is not None:
            running.close()

    def _start(self, exchange: RankExchange, keep: bool) -> BatcherProcess | BatcherThread:
        """The batcher of the next pass: the last one's where it was kept and still lives."""
        if not self.num_workers:
            return BatcherThread(self._spec(exchange))
        if keep and self._batcher is not None and self._batcher.alive():
            return self._batcher
        batcher = BatcherProcess(self._spec(exchange))
        if keep:
            self._batcher = batcher
        return batcher

    def _received(self, step: StepInfo, mark: StepProgress) -> None:
        if self._step_log is not None:
            self._step_log.write(step)
        self._position = self._position.after(step, mark, iterable=self._iterable)
        self._step_count.note(step)
        if mark.begins is not None:
            self._note(mark.begins.bad)

    def _ended(self, end: End) -> None:
        self._note(end.bad)
        # Where one rank's end is that of all, this rank's dataset may be anywhere.
        if self._own_place is not None and self.exhausted != "stop" and not self._position.resumed:
            self._own_place.end()
        self._position = self._epochs.begin(self._next_epoch)

    def _note(self, bad: Iterable[BadSample]) -> None:
        for sample in bad:
            logger.warning("skipped a sample in epoch %d: %s", sample.epoch, sample.reason)
            self.skipped.append(sample)

    # State

    def state_dict(self) -> dict[str, Any]:
        """Where the trainer is: after the last step that it has received, whatever is prefetched.
        JSON-able; every rank's is its own. See `evenstep.loader.resume.state` for what is in it.

        Raises:
            ConfigurationError: an iterable dataset that has no ``state_dict`` and may not be
                replayed is in the middle of an epoch.
        """
        # Of a loader that has iterated: its process group may be gone by now.
        rank, world_size = self._dealt or self._place()
        position = self._position
        if position.untouched and not self._under_way():
            position = self._epochs.begin(position.epoch)  # its size may be another by now
        if position.stateless:
            raise ConfigurationError(
                f"the dataset {type(self.dataset).__name__} has no state_dict() and "
                "load_state_dict(), so it cannot be resumed in the middle of an epoch; give it or "
                "its iterator both, or pass replay=True to have it read again from its beginning"
            )
        return to_dict(self._job(world_size, self._chunk_size), position, rank)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on where a state was saved: the next pass makes the steps that would have come.

        On as many ranks, each with its own state, those are exactly the same batches in the same
        order; `num_workers`, `prefetch` and, for map-style datasets, `chunk_size` may differ. With
        another `buffer_size`, or from `evenstep.merge_states` on any number of ranks, batches are
        formed anew from the samples not trained on, each of which comes once.

        Raises:
            MismatchError: the state is of a loader with another policy, dataset, order or seed, or
                lacks what this number of ranks needs.
        """
        rank, world_size = self._place()
        loaded = LoaderState.read(state)
        position = loaded.position(rank, world_size)
        saved = loaded.job.get("iterable")
        chunk_size = self._chunk_size
        if saved is not None and not self._given_chunk_size:
            chunk_size = saved["chunk_size"]  # it decides the order in which samples come
        job = self._job(world_size, chunk_size)
        if position.untouched:
            job.pop("iterable")
        check_job(loaded.job, job)
        window_size = self.policy.window_size
        if window_size(loaded.job["buffer_size"]) != window_size(self.buffer_size):
            position = position.rewindowed()
        self._leave()
        if chunk_size != self._chunk_size:
            self._chunk_size = chunk_size
            self._close_batcher()  # which was started with the other
        position = replace(position, resumed=position.sources is not None)
        self._position, self._resumes = position, True
        self._next_epoch = position.epoch
        self._dealt = None if loaded.merged is not None else (rank, world_size)

    def _job(self, world_size: int, chunk_size: int) -> dict[str, Any]:
        iterable = {"num_workers": self.num_workers, "chunk_size": chunk_size}
        return {
            "world_size": world_size,
            "policy": self.policy.fingerprint,
            "buffer_size": self.buffer_size,
            "iterable": iterable if self._iterable else None,
            **self._epochs.describe(),
        }

    def _epoch_spec(self, position: EpochProgress, share: EpochShare | None) -> EpochSpec:
        size = share.size if share is not None else None
        if size is not None:
            size = max(size - position.share.tail, 0) + len(position.share.leftover)
        return EpochSpec(
            serial=self._passes,
            epoch=position.epoch,
            share=size,
            start=position.start,
            received=position.received,
            remaining=position.remaining,
            sources=position.sources,
            skipped=len(position.skipped),
            left=position.stream.digest if position.stream is not None else None,
            expected=share.expected(position.share) if isinstance(share, PlannedShare) else None,
        )

    # How many steps

    def __len__(self) -> int:
        """Steps of a whole pass, where they are known beforehand: with `FixedBatch` over a sized
        dataset or sampler, and with policies that plan beforehand.

        Raises:
            TypeError: the number depends on lengths that are not known yet; see `estimated_steps`.
        """
        return self._step_count.exact(self._next_epoch, *self._place())

    @property
    def estimated_steps(self) -> int | None:
        """Steps of a whole pass, estimated from the mean samples per step so far. None before the
        first step, and where the number of samples is not known; exact with policies that plan
        beforehand. To draw progress or a learning rate by: the loop ends when the loader does."""
        return self._step_count.estimate(self._next_epoch, *self._place())

    # Ending

    def close(self) -> None:
        """Ends everything this loader runs. It can be iterated again afterwards."""
        if self._owner != os.getpid():
            return  # a copy in a forked child
        self._leave()
        self._close_batcher()
        if self._exchange is not None:
            self._exchange.close()
            self._exchange = None
        closed(self)

    def __del__(self) -> None:
        if hasattr(self, "_owner"):
            self.close()

    # How it is put together

    def _alone(self) -> bool:
        """Whether this process feeds itself only."""
        distributed = dist.is_available() and dist.is_initialized()
        return self._group == "local" or (self._group is None and not distributed)

    def _place(self) -> tuple[int, int]:
        """(data-parallel rank, data-parallel ranks), without a word to the other ranks."""
        number, size = 0, 1
        if not self._alone():
            number, size = dist.get_rank(self._group), dist.get_world_size(self._group)
        place = GroupPlace(number, size, self.policy.context_parallel)
        return place.rank, place.world_size

    def _connect(self) -> RankExchange:
        if self._exchange is None:
            parallel = self.policy.context_parallel
            self._exchange = (
                LocalExchange()
                if self._alone()
                else GlooExchange(self._group, context_parallel=parallel)
            )
            close_at_exit(self)
        if self._exchange.failure is not None:
            raise self._exchange.failure
        return self._exchange

    def _spec(self, exchange: RankExchange) -> LoaderSpec:
        return LoaderSpec(
            dataset=self.dataset,
            iterable=self._iterable,
            policy=self.policy,
            rank=exchange.place.rank,
            world_size=exchange.place.world_size,
            context_rank=exchange.place.context_rank,
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
            skip_bad_samples=self._skip_bad_samples,
            replay=self._replay,
            compared=self._compared(),
        )

    def _compared(self) -> Mapping[str, Any]:
        return {
            "dataset size": dataset_size(self.dataset, iterable=self._iterable),
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
