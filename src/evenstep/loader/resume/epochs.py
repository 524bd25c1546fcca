"""The samples of every epoch: which there are, in which order, and which rank receives which."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from evenstep.data.mixed_order import MixtureOrder
from evenstep.data.resumable import dataset_fingerprint
from evenstep.data.shares import divides_itself
from evenstep.errors import MismatchError
from evenstep.loader.arguments import check_order
from evenstep.loader.resume.epoch_progress import EpochProgress
from evenstep.loader.resume.sample_order import (
    EpochShare,
    SamplerOrder,
    epoch_order,
    sampler_order,
    sharded_order,
    size_of,
)
from evenstep.loader.row_order import draws_all, name_of
from evenstep.loader.transport.first_rows import READ, FirstRows
from evenstep.plan.epoch import Stream
from evenstep.plan.policies.fixed_batch import FixedBatch
from evenstep.plan.policy import Policy
from evenstep.protocol.window_size import WindowSize


@dataclass(frozen=True, kw_only=True)
class Epochs:
    """Any epoch, as the arguments of a loader define it.

    Raises:
        ConfigurationError: the arguments contradict each other.
    """

    dataset: Any
    policy: Policy
    iterable: bool
    sampler: Iterable[Any] | None
    shard_sampler: bool
    shuffle: bool
    seed: int
    drop_last: bool
    mixed: MixtureOrder | None = None
    """The built-in order of a `Mixture` of map-style datasets."""

    def __post_init__(self) -> None:
        check_order(
            self.dataset,
            iterable=self.iterable,
            shuffle=self.shuffle,
            sampler=self.sampler,
            shard_sampler=self.shard_sampler,
        )

    @property
    def batch_size(self) -> int | None:
        """None under any policy but `FixedBatch`."""
        return self.policy.batch_size if isinstance(self.policy, FixedBatch) else None

    def begin(self, epoch: int) -> EpochProgress:
        """The progress before the first step of an epoch."""
        self.set_epoch(epoch)  # the sampler's length may depend on it
        stream = self._stream()
        dealt = self.policy.deals_on_demand and stream is not None
        return EpochProgress(epoch=epoch, stream=stream, dealt=dealt)

    def set_epoch(self, epoch: int) -> None:
        """Tells the sampler, if it wants to know."""
        for order in (self.sampler, self.mixed):
            set_epoch = getattr(order, "set_epoch", None)
            if callable(set_epoch):
                set_epoch(epoch)

    def _stream(self) -> Stream | None:
        if self.sampler is None and not self.iterable:
            return Stream(len(self.dataset if self.mixed is None else self.mixed))
        if self.shard_sampler and (size := size_of(self.sampler)) is not None:
            return Stream(size)
        return None

    def check(self, progress: EpochProgress, buffer_size: int | str) -> None:
        """
        Raises:
            MismatchError: the progress of a state is not that of one of these epochs.
        """
        own = self.begin(progress.epoch)
        if not progress.untouched and (own.stream is None, own.dealt) != (
            progress.stream is None,
            progress.dealt,
        ):
            raise MismatchError(
                "the state does not say which samples of the epoch remain, or says it of another "
                "kind of epoch, so it is damaged; load it as DataLoader.state_dict() returned it"
            )
        quota = progress.start.quota
        most = WindowSize(self.policy, buffer_size, progress.start).most
        if quota is not None and quota > most:
            # The batcher would wait for samples that there is no room for.
            raise MismatchError(
                f"the state's window gathers {quota} samples, and this loader's hold {most}, so "
                "the state is damaged; load it as DataLoader.state_dict() returned it"
            )

    def share(self, progress: EpochProgress, rank: int, world_size: int) -> EpochShare | None:
        """A rank's samples of the epoch; None for an iterable dataset.

        Raises:
            MismatchError: the dataset or the sampler's order has changed.
        """
        if self.iterable:
            return None
        stream, sampler = progress.stream, self.sampler
        self.set_epoch(progress.epoch)
        if stream is None:
            assert sampler is not None
            if self.shard_sampler:
                return SamplerOrder(sampler, rank, world_size, drop_last=self.drop_last)
            return SamplerOrder(sampler)
        own = self._stream()
        if own is None or own.total != stream.total:
            what = "dataset" if sampler is None else "sampler"
            raise MismatchError(
                f"the {what} has {own and own.total} samples now, and had {stream.total} when "
                f"epoch {progress.epoch} began; its size may change between epochs only"
            )

        def order() -> Any:
            indices: Any
            if self.mixed is not None:
                indices = self.mixed.indices
            elif sampler is None:
                indices = epoch_order(
                    self.dataset, shuffle=self.shuffle, seed=self.seed, epoch=progress.epoch
                )
            else:
                indices = sampler_order(sampler, stream.total)
            before = progress.checksum_before_reshard
            before.check(indices[list(before.places)].tolist())
            return indices

        share = sharded_order(
            order, stream, rank, world_size, drop_last=self.drop_last, dealt=progress.dealt
        )
        remaining, size = progress.remaining, share.size
        if size is not None:
            last = max([*progress.checksum.places, *remaining.places[-1:].tolist()], default=-1)
            if max(remaining.place, last + 1) > size:
                raise MismatchError(
                    f"the checkpoint was made at place {max(remaining.place, last)} of this rank's "
                    f"share of epoch {progress.epoch}, which has {size} samples now; resume with "
                    "the dataset and sampler of the checkpoint"
                )
        return share

    def first_rows(self, share: EpochShare | None, indices: list[Any]) -> FirstRows | None:
        """What ranks compare of the order of a sampler or a mixture.

        Args:
            indices: what the share begins with.
        """
        if share is None or (self.sampler is None and self.mixed is None):
            return None
        if self.shard_sampler or self.mixed is not None:
            return FirstRows.of_order(share.head)
        if draws_all(self.sampler, self.dataset):
            return FirstRows.of_rank(range(READ))  # whichever come first
        return FirstRows.of_rank(indices)

    def share_size(self, world_size: int) -> int | None:
        """Samples of a rank in a whole epoch; None where unknown. An iterable dataset is believed,
        if it yields the rank's share."""
        if (stream := self._stream()) is None:
            if self.iterable and divides_itself(self.dataset) and world_size > 1:
                return None
            return size_of(self.dataset if self.iterable else self.sampler)
        return stream.total // world_size if self.drop_last else -(-stream.total // world_size)

    def samples(self, world_size: int) -> int | None:
        """Samples of all ranks in a whole epoch, those included that are repeated to make shares
        equal; None where unknown."""
        stream = self._stream()
        if stream is not None and self.policy.deals_on_demand and not self.drop_last:
            return stream.total  # there are no shares
        share = self.share_size(world_size)
        if share is not None and isinstance(self.policy, FixedBatch) and self.policy.drop_last:
            share -= share % self.policy.batch_size
        return None if share is None else share * world_size

    def steps(self, world_size: int) -> int:
        """Steps of a whole pass.

        Raises:
            TypeError: the number depends on lengths that are not known yet.
        """
        policy = self.policy
        if not isinstance(policy, FixedBatch):
            raise TypeError(
                f"the number of steps under {type(policy).__name__} depends on lengths that are "
                "known only as samples are prepared; loader.samples / loader.epoch_samples is the "
                "share of an epoch that is done"
            )
        size = self.share_size(world_size)
        if size is None:
            raise TypeError("the number of samples is unknown, so the number of steps is, too")
        return size // policy.batch_size if policy.drop_last else -(-size // policy.batch_size)

    def describe(self) -> dict[str, Any]:
        """What must be the same when an epoch is resumed."""
        name = "built-in" if self.sampler is None else name_of(self.sampler)
        return {
            "seed": self.seed,
            "dataset": dataset_fingerprint(self.dataset, iterable=self.iterable),
            "order": {
                "sampler": None if self.iterable else name,
                "shard_sampler": self.shard_sampler,
                "shuffle": self.shuffle,
                "drop_last": self.drop_last,
            },
        }
