"""From a planned step and its samples to the batch and its `StepInfo`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from evenstep.batch.blank import Blank, BlankRow, towers_of
from evenstep.batch.check import (
    check_packed,
    check_rows,
    check_supervised,
    misfits,
    without_padded_first,
)
from evenstep.batch.formats.hugging_face import leave_cache_out
from evenstep.batch.joining import copy_of
from evenstep.batch.labels import IGNORE_INDEX
from evenstep.batch.loss_scale import loss_scale, micro_batch_scales, shard_loss_scale
from evenstep.batch.media import MEDIA_FIELDS
from evenstep.batch.pack import PackCollator
from evenstep.batch.step_info import StepInfo
from evenstep.context_parallel.batch_shards import document_lengths, shard_batch
from evenstep.errors import CollateError, EvenstepError, SampleError, described
from evenstep.loader.batcher.batcher_messages import EpochSpec, LoaderSpec
from evenstep.loader.batcher.chunk_checks import FillerSample
from evenstep.loader.batcher.whole_updates import StepOfUpdate
from evenstep.loader.workers.worker_start import rank_seed, sample_seed, seed_everything
from evenstep.plan.packing import WorkloadPacking
from evenstep.protocol.planned_step import PlannedStep

logger = logging.getLogger("evenstep")


@dataclass(frozen=True)
class Row:
    """The samples of one micro-batch, and the ranks that share it."""

    samples: list[Any]
    """None for a zero-loss micro-batch."""
    lengths: list[int]
    """Tokens of each."""
    supervised: int
    """Supervised tokens of all."""


class StepMaker:
    """Collates, checks, shards and scales the steps of one epoch on one rank."""

    def __init__(
        self, spec: LoaderSpec, epoch: EpochSpec, filler_sample: Callable[[], Any], *, seeds: bool
    ) -> None:
        """
        Args:
            filler_sample: makes a sample for a filler step.
            seeds: seed this process by the step, so that what ``collate_fn`` draws at random is a
                function of the step. False where the process is the trainer's own.
        """
        self._spec, self._epoch = spec, epoch.epoch
        self._too_long = epoch.too_long
        self._filler_sample, self._seeds = filler_sample, seeds
        self._collate = GroupCollate(spec)

    def make(
        self, of_update: StepOfUpdate, groups: list[list[Any]], indices: tuple[Any, ...]
    ) -> tuple[StepInfo, Any]:
        """One step.

        Args:
            groups: samples of this data-parallel rank, by micro-batch; none for a filler step.
            indices: dataset indices of all of them, in order.

        Raises:
            CollateError: the collate function raised, or made a batch that contradicts its samples.
        """
        spec, epoch, planned = self._spec, self._epoch, of_update.planned
        start = planned.round.start
        labels, updates = start.labels, start.updates
        self._collate.suit(labels)
        if spec.measure.labels is None and labels == "causal":
            labels = None  # the batch shows whether the collate function has shifted them
        if self._seeds:
            seed_everything(sample_seed(rank_seed(spec.seed, epoch, spec.rank), planned.index))
        where = f"step {planned.index} of epoch {epoch} on rank {spec.rank}"
        names = list(map(repr, indices))
        if spec.iterable:
            names = [f"number {number}" for number in planned.members.tolist()]
        rows = self._rows(planned, groups)
        batches = self._batches(rows, labels, names, where)
        self._check(planned, zip(batches, rows), labels, where)
        batches, scale, scales = self._scaled(of_update, batches, rows)
        step = StepInfo(
            epoch=epoch,
            step=planned.index,
            rank=spec.rank,
            world_size=spec.world_size,
            context_rank=spec.context_rank,
            accumulate=updates.accumulate,
            counted=(updates.first, updates.before),
            ends_update=of_update.ends_update,
            too_long=self._too_long + planned.round.too_long,
            loads=of_update.loads,
            filler=not any(row.samples for row in rows),
            indices=None if spec.iterable else indices,
            totals=planned.totals,
            loss_scale=scale,
            loss_scales=scales,
            names=spec.sources,
        )
        return step, batches if spec.policy.micro_batches > 1 else batches[0]

    def _rows(self, planned: PlannedStep, groups: list[list[Any]]) -> list[Row]:
        """Micro-batches of this data-parallel rank, as many as the policy's steps have."""
        rows = []
        for samples, numbers in zip(groups, planned.micro_batches):
            lengths, supervised, *_ = planned.columns_of(numbers)
            rows.append(Row(samples, lengths.tolist(), int(supervised.sum())))
        return rows + [Row([], [], 0)] * (self._spec.policy.micro_batches - len(rows))

    def _batches(
        self, rows: Sequence[Row], labels: str | None, names: Sequence[str], where: str
    ) -> list[Any]:
        """A batch of each row.

        Args:
            names: of all rows' samples, for errors.
        """

        def collated(samples: list[Any]) -> Any:
            batch = self._collate(samples)
            if self._spec.loss_scaling != "none":
                check_rows(batch, len(samples))
            return without_padded_first(batch, labels)

        batches: list[Any] = []
        fillers, begin = self._fillers(rows), 0
        for row in rows:
            own = names[begin : begin + len(row.samples)]
            begin += len(own)
            try:
                batches.append(collated(row.samples or fillers.pop()))
            except BaseException as error:
                found = misfits(collated, row.samples)
                explained = _explained(error, found, own, f"{where}, samples [{', '.join(own)}]")
                if explained is error:
                    raise
                raise explained from error
        return batches

    def _fillers(self, rows: Sequence[Row]) -> list[list[Any]]:
        """Zero-loss micro-batches, run so that collectives match. Each holds a copy of the step's
        shortest sample, so that a resumed step makes the same again; a copy, since a collate
        function may change its samples."""
        lacking = sum(not row.samples for row in rows)
        samples = [sample for row in rows for sample in row.samples]
        make = self._filler_sample
        if lacking and samples:
            shortest = int(np.argmin([length for row in rows for length in row.lengths]))
            make = FillerSample.of(samples[shortest]).sample
        return [[make()] for _ in range(lacking)]

    def _check(
        self,
        planned: PlannedStep,
        batches: Iterable[tuple[Any, Row]],
        labels: str | None,
        where: str,
    ) -> None:
        """Raises a `CollateError` for a batch that contradicts its row, and leaves out a cache."""
        spec, start = self._spec, planned.round.start
        policy, first = spec.policy, self._epoch == planned.index == spec.rank == 0
        for batch, row in batches:
            packed = policy.packed or len(row.samples) > 1
            leave_cache_out(batch, packed=packed, first=first)
            if spec.loss_scaling == "token" and row.samples:
                check_supervised(batch, row.supervised, where, labels, len(row.samples))
            alone = spec.too_long == "alone" and len(row.samples) == 1
            if policy.packed and policy.limit is not None and not alone:
                most = policy.limit.max_tokens if start.fits is None else start.fits[0].most
                check_packed(batch, most, where)

    def _scaled(
        self, of_update: StepOfUpdate, batches: list[Any], rows: list[Row]
    ) -> tuple[list[Any], float, tuple[float, ...]]:
        """What this context-parallel rank trains on of each batch, the step's loss scale, and those
        of its micro-batches if it has several."""
        spec = self._spec
        policy, scaling = spec.policy, spec.loss_scaling
        supervised = [row.supervised for row in rows]
        total = of_update.totals.counted(scaling)
        scale = loss_scale(of_update.planned.totals, spec.rank, scaling, total=total)
        if isinstance(policy, WorkloadPacking) and policy.context_parallel > 1:
            batches, supervised = self._own_shards(policy, batches, rows)
            if scaling == "token":
                tokens = of_update.totals.supervised_tokens
                ranks = policy.context_parallel * spec.world_size
                scale = shard_loss_scale(sum(supervised), tokens, ranks)
        scales: tuple[float, ...] = ()
        if policy.micro_batches > 1:
            samples = [len(row.samples) for row in rows]
            scales = micro_batch_scales(scale, scaling, samples, supervised)
            scales = tuple(each if row.samples else 0.0 for each, row in zip(scales, rows))
        return batches, scale, scales

    def _own_shards(
        self, policy: WorkloadPacking, batches: Sequence[Any], rows: Sequence[Row]
    ) -> tuple[list[dict[str, Any]], list[int]]:
        """Cuts this rank's shard out of each micro-batch.

        Returns:
            The shards, and the supervised tokens in each; none in a zero-loss one.

        Raises:
            CollateError: a collate function other than `PackCollator` made a batch that cannot be
                cut.
        """
        collate, options = self._collate.function, dict[str, Any]()
        if isinstance(collate, PackCollator):
            options["labels_shifted"] = not collate.mask_first_label
        rank = self._spec.context_rank
        shards = [
            shard_batch(batch, policy.shard(document_lengths(batch)), rank, **options)
            for batch in batches
        ]
        supervised = [
            int(np.count_nonzero(shard["shift_labels"] != IGNORE_INDEX)) if row.samples else 0
            for shard, row in zip(shards, rows)
        ]
        return shards, supervised


def _explained(
    error: BaseException, misfits: Mapping[int, BaseException], names: Sequence[str], where: str
) -> BaseException:
    """
    Args:
        error: that the collate function raised.
        misfits: samples that are to blame, and what is raised for each.
        names: of all samples.
    """
    if len(misfits) == 1:
        ((place, cause),) = misfits.items()
        return SampleError(
            f"sample {names[place]} cannot be collated, alone or with others: "
            f"{described(cause)}; fix it, or exclude its index from the sampler. It came in {where}"
        )
    if isinstance(error, EvenstepError):
        return CollateError(f"{where}: {error}") if isinstance(error, CollateError) else error
    return CollateError(f"{where}: collate_fn raised {described(error)}")


class GroupCollate:
    """The collate function of a loader, with its blank for groups without images. Where there is no
    blank, it says so once a group lacks what others have, since ranks then wait for each other
    without a word."""

    def __init__(self, spec: LoaderSpec) -> None:
        self.function: Callable[[list[Any]], Any] = spec.collate_fn
        self._given = spec.collate_fn
        self._labels: str | None = None
        self._rank, self._scaling = spec.rank, spec.loss_scaling
        self._blank = spec.blank if spec.world_size > 1 else False
        self._media = getattr(spec.collate_fn, "media_fields", MEDIA_FIELDS)
        self._packed = spec.policy.packed or isinstance(spec.collate_fn, PackCollator)
        self._seen: list[set[str]] = []
        self._row_towers: set[str] | None = None

    def suit(self, labels: str | None) -> None:
        """Takes the form of the function for models that read labels like this."""
        given = self._given
        if self._labels == labels and self.function is not given:
            return
        self._labels = labels
        if isinstance(given, PackCollator) and given.mask_first_label is None:
            self.function = replace(given, mask_first_label=labels != "every")

    def __call__(self, samples: list[Any]) -> Any:
        """The batch of a group.

        Raises:
            CollateError: see `Blank.added_to` and `BlankRow.collated`.
        """
        blank, collate = self._blank, self.function
        if isinstance(blank, BlankRow):
            if self._row_towers is None:
                self._row_towers = towers_of(collate([copy_of(blank.sample)]), self._media)
            scaling = self._scaling
            return blank.collated(collate, samples, self._row_towers, loss_scaling=scaling)
        if isinstance(blank, Blank):
            samples = blank.added_to(samples, packed=self._packed)
        batch = collate(samples)
        if blank is None:
            self._note(towers_of(batch, self._media))
        return batch

    def _note(self, towers: set[str]) -> None:
        if towers not in self._seen:
            self._seen.append(towers)
        if len(self._seen) > 1:
            self._blank = False
            lacking = self._seen[0] ^ self._seen[1]
            logger.warning(
                "rank %d has batches with %s and batches without. Where DDP, FSDP or ZeRO-3 trains "
                "the encoder, ranks without may wait for ever for those with; give them a blank "
                "one, by evenstep.DataLoader(blank=): a processor, a prepared sample with one or, "
                "where collate_fn takes rows, a row with one; or, if no rank waits, blank=False",
                self._rank,
                " and ".join(sorted(lacking)),
            )
