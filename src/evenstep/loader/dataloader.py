"""`evenstep.DataLoader`: a drop-in for torch's that forms batches after lengths are known."""

from __future__ import annotations

import inspect
import logging
import os
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist

from evenstep.batch.measure import Measure
from evenstep.batch.step_info import StepInfo
from evenstep.cost.of_model import cost_in_place_of
from evenstep.data.mixed import Mixture
from evenstep.data.mixed_order import MixtureOrder
from evenstep.data.resumable import dataset_size
from evenstep.errors import ConfigurationError
from evenstep.loader.arguments import (
    check_caller,
    check_group,
    check_in_order,
    refuse_trainers,
    resolve_blank,
    resolve_collate,
    resolve_policy,
    resolve_seed,
    resolve_start_method,
    resolve_trim,
)
from evenstep.loader.attributes import LoaderAttributes
from evenstep.loader.batcher.batcher_messages import BadSample, EpochEnd, LoaderSpec, StepProgress
from evenstep.loader.iterator import BatchIterator, Observers, StepIterator
from evenstep.loader.learning.job_learning import JobLearning
from evenstep.loader.learning.question import JobQuestion, Learned, Measured
from evenstep.loader.memory_watch import MemoryWatch
from evenstep.loader.notices import Notices
from evenstep.loader.options import Faults, LoaderOptions, Memory, SampleCounts
from evenstep.loader.own_time import OwnTime
from evenstep.loader.resume.epoch_cursor import EpochCursor
from evenstep.loader.resume.epochs import Epochs
from evenstep.loader.resume.resumption import job_of, resumption, with_chunk_size
from evenstep.loader.resume.state import to_dict
from evenstep.loader.row_order import resolve_batch_sampler
from evenstep.loader.runtime import LoaderRuntime, close_at_exit, unregister
from evenstep.loader.step_clock import StepClock
from evenstep.loader.transport.peers import GroupPlace
from evenstep.loader.transport.rank_exchange import place_in_group
from evenstep.plan.policies.even.even import Even
from evenstep.plan.policy import Policy
from evenstep.plan.update_size import resolve_accumulate
from evenstep.plan.value_checks import check_at_least
from evenstep.run_log import RunLog

logger = logging.getLogger("evenstep")


class DataLoader(LoaderAttributes):
    """Batches of `dataset`, formed by `policy` from the lengths that samples turn out to have.

    Arguments that torch's DataLoader has mean what they mean there, in the same order. Those that
    differ:

    Args:
        dataset: map-style or iterable; one processed sample each. An iterable one must yield this
            rank's (and worker's) share only, as with torch, unless the loader deals it: see
            "Iterable datasets" in docs/loader.md. Several are one `evenstep.Mixture`.
        policy: how groups are formed; all ranks must pass an equal one.
        batch_size: short for ``policy=FixedBatch(batch_size)``; not together with `policy`. No
            sample needs a length or labels then.
        batch_sampler: anything that yields lists of indices. `policy` forms batches of these rows
            in their order, which the ranks share: see `shard_sampler`. A plain
            ``torch.utils.data.BatchSampler`` without a policy is short for its `sampler`,
            `batch_size` and `drop_last`.
        collate_fn: list of samples -> batch. None is `PadCollator()`; `PackCollator()` where the
            policy forms packed groups; under `FixedBatch` torch's ``default_collate``, except for
            samples that have ``input_ids``. It runs in the batcher process, once per step. Where
            the samples have no tokens and it makes them, it runs on each alone, in the workers:
            see `evenstep.PreparingCollator`.
        shuffle, seed: without a `sampler`, the order is that of torch's ``DistributedSampler``:
            a function of (seed, epoch). Policies that do not deal samples on demand repeat a few,
            so that all ranks get equally many.
        generator: its initial seed is the seed, in place of `seed`. Nothing is drawn from it.
        sampler: yields this rank's own indices. It runs in this process. To resume, its order must
            be a function of (seed, epoch).
        shard_sampler: whether `sampler` yields the same indices, those of the whole job, on every
            rank, and the ranks share them. Any number of ranks can then resume an epoch, if it has
            a length. None is True for a `batch_sampler`, unless it is known to yield the rows of
            one rank, and False for a `sampler`.
        drop_last: drop the tail that does not divide among the ranks, and, under `batch_size`, the
            last smaller batch.
        num_workers: processes that prepare samples; 0 prepares them in a thread of this process.
        prefetch_factor: chunks prepared ahead by each worker (2 when None).
        timeout: seconds that a worker may take for a chunk of samples; else it is a
            `LoaderDiedError`. 0 is no limit.
        update_tokens: real tokens of an optimizer update on all ranks together, or "auto" for what
            a full group of each rank holds. The loader chooses how many steps an update has, and
            how large their groups are: see `evenstep.plan.update_size`. It reads a few samples
            before the first step for that: see `evenstep.loader.learning`. The loop steps its
            optimizer where `StepInfo.ends_update`.
        accumulate: in place of `update_tokens`, how many steps an update has; 1 by default. Their
            gradients are added up before the optimizer steps. They are handed out once all of them
            are planned, and `loss_scale` weighs them, so that their gradients add up to that of
            one batch of all their samples.
        blank: in a job of several ranks, groups without images are given the smallest one, without
            a part in loss or gradients, so that every rank runs the vision tower in every step:
            see `evenstep.batch.blank`. This says which: a processor, whose smallest it is; a
            prepared sample with an image; or, where `collate_fn` takes raw rows together, such a
            row. None finds one where `collate_fn` prepares the samples and a few of them have
            images; False adds none.
        length_fn: tokens of a sample, or a `SampleCounts` where its supervised tokens or patches
            are not counted by default. None counts its ``input_ids``: see `evenstep.batch.Measure`.
        labels: how the model reads labels. "causal": it shifts them inside, so the first label of a
            sample never counts. "every": it does not, as encoder-decoders and token classifiers, or
            the dataset has shifted them. None lets the samples show it, once for all ranks: see
            `evenstep.plan.label_reading`.
        too_long: what becomes of samples longer than the policy's `max_tokens`: "error", "skip",
            "truncate", "split" (of an iterable dataset) or "alone", up to `Memory.longest`. See
            "Samples that are too long" in docs/loader.md.
        loss_scaling: "token" (exact), "sample" or "none"; see
            `evenstep.batch.loss_scale`.
        step_log: a file to which the first rank adds a line for each step: what it took and held.
            ``evenstep report`` shows it.
        multiprocessing_context: how batcher and workers start. None is Python's default, a fork on
            Linux. See "How workers start" in docs/loader.md.
        in_order: batches come in order, so False is refused.
        group: the process group of all ranks that train on these steps: the data-parallel ones,
            and those that share micro-batches with them (`WorkloadPacking.context_parallel`), next
            to each other. None is the default group where torch.distributed is initialised, else
            this process alone; "local" is this process alone in any case.
        memory: how many samples and batches are held: see `Memory`.
        faults: what happens to bad samples, slow ranks and ranks without samples: see `Faults`.

    Raises:
        ConfigurationError: an argument is wrong or contradicts another.

    While iterating, on every rank: `SampleError`, `CollateError`, `MismatchError`, `PeerError`,
    `LoaderDiedError`.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = None,
        shuffle: bool | None = False,
        sampler: Iterable[Any] | None = None,
        batch_sampler: Iterable[Any] | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        generator: torch.Generator | None = None,
        *,
        policy: Policy | None = None,
        seed: int = 0,
        shard_sampler: bool | None = None,
        prefetch_factor: int | None = None,
        update_tokens: int | str | None = None,
        accumulate: int | None = None,
        blank: Any = None,
        length_fn: Callable[[Any], int] | SampleCounts | None = None,
        labels: str | None = None,
        too_long: str = "error",
        loss_scaling: str = "token",
        memory: Memory | None = None,
        faults: Faults | None = None,
        step_log: str | os.PathLike[str] | None = None,
        persistent_workers: bool = False,
        in_order: bool = True,
        group: dist.ProcessGroup | str | None = None,
    ) -> None:
        check_in_order(in_order)
        memory = Memory() if memory is None else memory
        faults = Faults() if faults is None else faults
        counts = SampleCounts.of(length_fn)
        sampler, batch_size, drop_last, shard_sampler = resolve_batch_sampler(
            batch_sampler,
            sampler=sampler,
            batch_size=batch_size,
            drop_last=drop_last,
            shard_sampler=shard_sampler,
            policy=policy,
            shuffle=shuffle,
        )
        policy = resolve_policy(policy, batch_size, drop_last)
        measure = Measure(
            length_fn=counts.tokens,
            supervised_fn=counts.supervised,
            patches_fn=counts.patches,
            count_patches=policy.counts_patches,
            needs_lengths=policy.needs_lengths,
            labels=labels,
        )
        collate_fn = resolve_collate(policy, collate_fn)
        self._options = options = LoaderOptions(
            dataset=dataset,
            policy=policy,
            seed=resolve_seed(seed, generator),
            memory=memory,
            faults=faults,
            accumulate=resolve_accumulate(accumulate, update_tokens),
            update_tokens=update_tokens,
            loss_scaling=loss_scaling,
            collate_fn=collate_fn,
            blank=resolve_blank(blank, collate_fn),
            measure=replace(measure, trim=resolve_trim(policy, collate_fn)),
            num_workers=num_workers,
            prefetch_factor=prefetch_factor,
            timeout=timeout,
            worker_init_fn=worker_init_fn,
            start_method=resolve_start_method(multiprocessing_context),
            persistent_workers=persistent_workers,
            too_long=too_long,
        )
        check_group(group)
        self.pin_memory = pin_memory
        self.generator = generator
        self._batch_sampler = batch_sampler
        self._run_log = step_log
        self._clock: StepClock | None = None
        self._watch: MemoryWatch | None = None
        self._own_time = OwnTime()
        self._notices = Notices(policy, too_long)
        self._group: Any = group
        self._chunk_size_given = memory.chunk_size is not None
        # Where the trainer is.
        mixed = None
        if isinstance(dataset, Mixture) and not options.iterable:
            mixed = MixtureOrder(dataset, seed=options.seed, shuffle=bool(shuffle))
        self._epochs = Epochs(
            dataset=dataset,
            policy=policy,
            iterable=options.iterable,
            sampler=sampler,
            shard_sampler=shard_sampler,
            shuffle=bool(shuffle),
            seed=options.seed,
            drop_last=drop_last,
            mixed=mixed,
        )
        self._cursor = EpochCursor(self._epochs, labels)
        # What runs.
        self._runtime = LoaderRuntime(group)
        self._job = JobLearning(self._runtime.ask)
        self._passes = 0
        self._current: weakref.ref[StepIterator] | None = None
        self._owner = os.getpid()

    # Iterating

    @property
    def epoch(self) -> int:
        """Number of the next pass; while one is under way, of the one after it."""
        return self._cursor.next_epoch

    def set_epoch(self, epoch: int) -> None:
        """Sets the number of the next pass, which decides its order together with the seed. Without
        a call each pass takes the number after the last one's.

        Raises:
            MismatchError: a state was loaded that is in the middle of another epoch.
        """
        check_at_least(0, epoch=epoch)
        self._cursor.set_epoch(epoch, under_way=self._under_way())

    def __iter__(self) -> Iterator[Any]:
        """Yields batches. Those that are mappings carry their `StepInfo`: see `pop_step`.

        Raises:
            ConfigurationError: a trainer iterates, without its integration.
        """
        frame = inspect.currentframe()
        check_caller(frame and frame.f_back)
        return BatchIterator(self.steps())

    def steps(self) -> StepIterator:
        """Begins a pass that yields (batch, `StepInfo`), and abandons a pass that is under way. The
        first pass after `load_state_dict` resumes the epoch of the state."""
        self._abandon()
        exchange = self._runtime.connect(self.policy.context_parallel, self.faults)
        close_at_exit(self)
        with self._runtime.beginning(exchange):
            self._job.learn(self._options, exchange)
            start = self._cursor.start(*self._rank_and_world_size(), here=not self.num_workers)
            epoch = start.spec(self._passes)
            self._passes += 1
            batcher = self._runtime.start_batcher(start, self._spec(exchange.place))
            iterator = StepIterator(
                batcher=batcher,
                keep_batcher=self._options.keeps_workers,
                exchange=exchange,
                feeder=self._runtime.start_feeder(start, batcher, epoch.serial),
                epoch=epoch,
                pin_memory=self.pin_memory and torch.cuda.is_available(),
                observers=Observers(
                    received=self._note_step,
                    ended=self._end_pass,
                    run_log=self._log_of_pass(exchange.place),
                    clock=self._clock_of(exchange.place),
                    memory=self._memory_of(exchange.place),
                    own_time=self._own_time_of(exchange.place),
                ),
            )
        self._notices.begin(start.progress.lengths_before)
        self._current = weakref.ref(iterator)
        self._cursor.note_start(start)
        return iterator

    def _log_of_pass(self, place: GroupPlace) -> RunLog | None:
        if self._run_log is None or place.rank or place.context_rank:
            return None
        about = {"run": "loader", "ranks": place.world_size}
        return RunLog(self._run_log, {**about, "policy": self.policy.fingerprint})

    def _clock_of(self, place: GroupPlace) -> StepClock | None:
        """None where ranks share documents, since totals are of what each has read."""
        if self.policy.context_parallel > 1:
            return None
        if self._clock is None:
            self._clock = StepClock(self.policy, place.rank, self._cursor.ratios)
        return self._clock

    def _own_time_of(self, place: GroupPlace) -> OwnTime | None:
        """None where a rank is alone, or waits for those that it shares documents with."""
        alone = place.world_size == 1 or self.policy.context_parallel > 1
        return None if alone else self._own_time

    def _memory_of(self, place: GroupPlace) -> MemoryWatch | None:
        if self._watch is None and self.policy.fits_memory:
            memory = self._options.memory
            self._watch = MemoryWatch(
                place.rank,
                place.world_size,
                packed=self.policy.packed,
                share=memory.share,
                total=memory.total_bytes,
            )
        return self._watch

    def _spec(self, place: GroupPlace) -> LoaderSpec:
        options = self._learned_options
        blank = options.blank
        if blank and self._passes == 1 and not place.rank and place.world_size > 1:
            logger.info("batches without images are given a blank one")
        return LoaderSpec(
            **vars(options),
            rank=place.rank,
            world_size=place.world_size,
            context_rank=place.context_rank,
            compared={
                "dataset size": dataset_size(self.dataset, iterable=options.iterable),
                "loss_scaling": self.loss_scaling,
                "shuffle": self.shuffle,
                "drop_last": self.drop_last,
                "names of a mixture": list(options.sources),
                "too_long": options.too_long,
                "repeatable": options.faults.repeatable,
                "blank": None if self._options.blank is None else bool(blank),
            },
        )

    def _note_step(self, step: StepInfo, message: StepProgress) -> None:
        self._cursor.note_step(step, message)
        if self._watch is not None:
            self._watch.handed_out(step, self._cursor.fit)
        if message.paces is not None:
            self._own_time.compare(message.paces)
            if not step.rank:
                self._notices.slow(self._own_time.slow, step)
        if not step.rank and not step.context_rank:
            self._notices.too_long(step.too_long)
        if self.loss_scaling == "token":
            self._notices.supervision(step)
        if message.new_round is not None:
            self._notices.bad(message.new_round.bad)
            self._notices.changed_lengths(message.new_round.start)
            if torch.is_grad_enabled():  # an evaluation teaches nothing
                self._notices.round(step, message.new_round)
            if not step.rank and not step.context_rank:
                same = message.new_round.same_rows
                self._notices.same_rows(same, self.sampler, self.dataset)

    def _end_pass(self, end: EpochEnd) -> None:
        self._notices.bad(end.bad)
        if self._cursor.ranks and not self._cursor.ranks[0]:
            self._notices.too_long(end.too_long)
        # Where one rank's end is that of all, this rank's dataset may be anywhere.
        self._cursor.end_pass(end.too_long, exhausted=self.faults.exhausted != "stop")

    # State

    def state_dict(self) -> dict[str, Any]:
        """The position after the last step that the trainer has received; prefetched steps do not
        count. JSON-able. Every rank has its own. For the content see
        `evenstep.loader.resume.state`.

        Raises:
            ConfigurationError: an iterable dataset that has no ``state_dict`` and may not be
                replayed is in the middle of an epoch.
        """
        # After a pass they are known, even if the process group has been destroyed since.
        rank, world_size = self._cursor.ranks or self._rank_and_world_size()
        progress = self._cursor.to_save(under_way=self._under_way())
        learned = self._job.known(self._options, world_size)
        job = job_of(self._options, learned, self._epochs, world_size)
        if self._epochs.mixed is not None:
            job["mixture"] = self._epochs.mixed.state_dict(progress.epoch)
        return to_dict(job, progress, rank)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resumes from a state: the next pass makes the steps that would have followed it.

        On as many ranks, each with its own state, those are exactly the same batches in the same
        order; `num_workers` and `memory` may differ, except for ``buffer_size``. With another
        ``buffer_size`` or `accumulate`, under ``Faults(repeatable=False)``, or from
        `evenstep.merge_states` on any number of ranks, the loader forms new batches from the
        samples not trained on, each of which comes once. What is left of the update under way is
        then an update of its own.

        Raises:
            MismatchError: the state is of a loader with another policy, dataset, order or seed, or
                lacks what this number of ranks needs.
        """
        found = resumption(
            state,
            self._options,
            self._epochs,
            self._rank_and_world_size(),
            chunk_size_given=self._chunk_size_given,
        )
        self._abandon()
        if found.chunk_size != self._options.chunk_size:
            self._options = with_chunk_size(self._options, found.chunk_size)
            self._runtime.close_batcher()  # it was started with the other
        self._job.load(self._options.update_tokens, found.learned, found.dealt)
        self._cursor.load(found.progress, found.ranks)

    # How many samples and steps

    @property
    def labels(self) -> str | None:
        """How the model reads labels: the argument, or what the samples of the steps received have
        shown; None as long as nothing depends on it."""
        return self._cursor.labels

    @property
    def skipped(self) -> list[BadSample]:
        """Samples skipped so far."""
        return self._notices.skipped

    @property
    def samples(self) -> int:
        """Samples of all ranks in the steps received so far: in all passes, and before a resume.
        What is repeated to make ranks equal counts, as each was trained on."""
        return self._cursor.samples

    @property
    def world_size(self) -> int:
        """Data-parallel ranks."""
        return self._rank_and_world_size()[1]

    @property
    def epoch_samples(self) -> int | None:
        """Samples of a whole pass, of all ranks together; None where that is unknown."""
        return self._epochs.samples(self.world_size)

    def __len__(self) -> int:
        """Steps of a whole pass, where they are known in advance: with `FixedBatch` over a sized
        dataset or sampler.

        Raises:
            TypeError: the number depends on lengths that are not known yet.
            ConfigurationError: a trainer asks, without its integration.
        """
        frame = inspect.currentframe()
        refuse_trainers(frame and frame.f_back)
        return self._epochs.steps(self.world_size)

    # What the job is like

    def learn(self) -> None:
        """Finds out what the first pass needs to know of the job: see `evenstep.loader.learning`.
        All ranks call it. A pass does so itself; `accumulate`, `sized_policy` and `blank` need it
        where there are several ranks.

        Raises:
            EvenstepError: on all ranks, that the first one's samples are all bad, say.
        """
        exchange = self._runtime.connect(self.policy.context_parallel, self.faults)
        close_at_exit(self)
        with self._runtime.beginning(exchange):
            self._job.learn(self._options, exchange)

    @property
    def learned(self) -> Learned | None:
        """What was found of the job; None before `learn`, which the first pass calls."""
        return self._job.known(self._options, self.world_size)

    def measure_lengths(self, samples: int, *, seconds: float, enough: int) -> Measured:
        """Lengths of some samples, measured by this rank alone, after `learn`.

        Args:
            samples: how many to draw at random.
            seconds: measure no more after so long, once there are `enough`.
        """
        question = JobQuestion(
            options=self._learned_options,
            ranks=self.world_size,
            samples=samples,
            seconds=seconds,
            enough=enough,
        )
        measured = self._runtime.ask(question).measured
        assert measured is not None
        return measured

    @property
    def _learned_options(self) -> LoaderOptions:
        """The options, with what was found of the job."""
        ranks = self.world_size
        options = self._job.applied(self._options, ranks)
        if options is None and ranks > 1:
            raise ConfigurationError(
                "samples are tried to find this out, and ranks agree on it when the first pass "
                "begins; read it after that, or call loader.learn() on all ranks before"
            )
        if options is None:
            self.learn()
            options = self._job.applied(self._options, ranks)
            assert options is not None
        return options

    def take_cost(self, model: Any) -> None:
        """Has `Even` make the time of `model` equal, where the policy was given no `cost`, or begin
        with it, where that is a `MeasuredCost()`: see `evenstep.cost_of`. The vision tower is
        counted where the policy limits patches or images, and evenstep counts them. Once a pass has
        begun, or a state was loaded, nothing changes.

        All ranks call it. The integrations of trainers do, for a model that they know. It also
        calls `watch`.
        """
        if isinstance(model, torch.nn.Module):
            self.watch(model)
        policy = self.policy
        if not isinstance(policy, Even) or self._cursor.begun:
            return
        counted = policy.counts_patches and self.measure.patches_fn is None
        cost = cost_in_place_of(policy.cost, model, vision=counted)
        if cost is not None:
            self._take(replace(policy, cost=cost))

    def watch(self, model: torch.nn.Module) -> None:
        """Finds ranks whose device is slow, for `StepInfo.slow`, logs and ``evenstep report``: has
        each rank time its steps until the gradients of `model` are complete, before it waits for
        others. See docs/diagnose.md. At any time; all ranks call it. No plan depends on it.
        """
        self._own_time.watch(model)

    def take_sync(self) -> None:
        """Has `Even` make the time of updates equal: see `Even.sync`. Once a pass has begun, or a
        state was loaded, nothing changes.

        All ranks call it. The integrations of trainers do, where ranks wait at updates alone.
        """
        if isinstance(self.policy, Even) and not self._cursor.begun:
            self._take(replace(self.policy, sync="update"))

    def _take(self, policy: Even) -> None:
        epoch, labels = self.epoch, self.labels
        self._options = replace(self._options, policy=policy)
        self._epochs = replace(self._epochs, policy=policy)
        self._cursor = EpochCursor(self._epochs, labels)
        self._cursor.set_epoch(epoch, under_way=False)
        if self._job.asked:
            self.learn()  # the size of updates depends on the cost

    # Ending

    def close(self) -> None:
        """Ends everything this loader runs. It can be iterated again afterwards."""
        if self._owner != os.getpid():
            return  # a copy in a forked child
        self._abandon()
        self._runtime.close()
        unregister(self)

    def __del__(self) -> None:
        if hasattr(self, "_owner"):
            self.close()

    def _under_way(self) -> bool:
        running = self._current() if self._current is not None else None
        return running is not None and not running.closed

    def _abandon(self) -> None:
        """Abandons the pass under way, if there is one."""
        if self._current is not None and (running := self._current()) is not None:
            running.close()

    def _rank_and_world_size(self) -> tuple[int, int]:
        """(data-parallel rank, data-parallel ranks)."""
        place = place_in_group(self._group, self.policy.context_parallel)
        return place.rank, place.world_size
