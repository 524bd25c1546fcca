"""A loader's state as JSON-able values: what is saved with a model, and what is loaded.

    {"version": 5, "of": "DataLoader",
     "job":   how the loader is built: policy, dataset, order, seed, ranks, buffer
     "epoch": how far the epoch is: the same on all ranks, if all were saved at the same step
     "dp_rank_3": what only rank 3 knows: its window, and which of it has been trained on}

A rank's own key lets ``torch.distributed.checkpoint`` keep every rank's part. The parts of all
ranks together say which samples of the epoch have not been trained on, so any number of ranks can
resume: see `merge_states`. All keys are there at all times.

Size: per rank five numbers for each sample of a window; after a change of the number of ranks, one
number more, on all ranks alike, for each sample that was in some rank's window then.

`read_states` reads the states of all ranks out of a checkpoint of ``torch.distributed.checkpoint``.
A rank that loads such a checkpoint gets its own part only. To resume on another number of ranks,
every rank needs the parts of all.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np

from evenstep.errors import ConfigurationError, EvenstepError, MismatchError, described, parsing
from evenstep.loader.resume.epoch_progress import EpochProgress
from evenstep.loader.resume.sample_order import OrderChecksum
from evenstep.loader.resume.state_schema import (
    EPOCH_SCHEMA,
    JOB_SCHEMA,
    LEARNED_SCHEMA,
    RANK_SCHEMA,
    check_epoch,
    check_rank,
)
from evenstep.plan.epoch import Stream
from evenstep.plan.saved_state import REMEDY, headed, reading
from evenstep.plan.value_checks import AT_LEAST_1, check_schema, shorten

_OF = "DataLoader"
_RANK_PREFIX = "dp_rank_"
_NAMED = 16  # ranks in an error


def rank_key(rank: int) -> str:
    return f"{_RANK_PREFIX}{rank}"


def to_dict(job: Mapping[str, Any], progress: EpochProgress, rank: int) -> dict[str, Any]:
    """The state of one rank."""
    parts = {rank_key(rank): progress.rank_dict()}
    return headed(_OF, job=dict(job), epoch=progress.shared_dict(), **parts)


@dataclass(frozen=True, kw_only=True)
class LoaderState:
    """A state that has been read."""

    job: Mapping[str, Any]
    epoch: Mapping[str, Any]
    ranks: Mapping[int, EpochProgress]
    """By rank, for those ranks whose part the state has; empty in a merged state."""
    merged: EpochProgress | None
    """Where a merged state resumes, on any number of ranks; None for any other state."""

    @classmethod
    def read(cls, state: Mapping[str, Any]) -> LoaderState:
        """
        Raises:
            MismatchError: this is not a loader's state, is damaged, or has another version.
        """
        with reading(state, _OF, {"job": JOB_SCHEMA, "epoch": EPOCH_SCHEMA}):
            job, epoch = state["job"], state["epoch"]
            check_epoch(epoch)
            check_schema(job.get("dealt", False), bool, "job dealt")
            if "learned" in job:
                check_schema(job["learned"], LEARNED_SCHEMA, "job learned")
                check_schema(job["learned"].get("sizes", []), [[AT_LEAST_1]], "job learned sizes")
            ranks = {}
            for key, part in state.items():
                if key.startswith(_RANK_PREFIX):
                    rank = _rank_of(key, job["world_size"])
                    check_schema(part, RANK_SCHEMA, key)
                    check_rank(part, epoch, job)
                    ranks[rank] = EpochProgress.from_dicts(epoch, part)
        if job["world_size"] is None:
            merged = EpochProgress.from_dicts(epoch, None)
            return cls(job=job, epoch=epoch, ranks=ranks, merged=merged)
        if not ranks:
            raise MismatchError(
                "the state has the parts of no rank; give every rank the state that it saved, or "
                "the parts of all: evenstep.merge_states(states)"
            )
        return cls(job=job, epoch=epoch, ranks=ranks, merged=None)

    def progress(self, rank: int, world_size: int) -> EpochProgress:
        """Where `rank` of `world_size` ranks resumes.

        Raises:
            MismatchError: parts of the state are missing, or only as many ranks as before can
                resume it.
        """
        if self.merged is not None:
            return self.merged
        if self.job["world_size"] == world_size:
            if rank not in self.ranks:
                raise MismatchError(
                    f"the state has the parts of ranks {sorted(self.ranks)}, and this is rank "
                    f"{rank}; give every rank the state that it saved"
                )
            return self.ranks[rank]
        return self.resharded()

    def resharded(self) -> EpochProgress:
        """What is left of the epoch, for any number of ranks.

        Raises:
            MismatchError: parts are missing, or only as many ranks as before can resume.
        """
        first = next(iter(self.ranks.values()))
        if all(progress.untouched for progress in self.ranks.values()):
            return EpochProgress(
                epoch=first.epoch,
                stream=first.stream,
                dealt=first.dealt,
                start=first.start.fresh(other_ranks=True),
                samples=first.samples,
                too_long=first.too_long,
            )
        world_size = self.job["world_size"]
        if first.stream is None:
            raise MismatchError(
                f"the state was saved by {world_size} ranks in the middle of epoch {first.epoch}, "
                "in which each had an order of its own, so another number of ranks cannot share "
                f"what is left of it; resume on {world_size} ranks, or let evenstep shard: "
                "shuffle= or shard_sampler=True"
            )
        # A damaged state may name billions of ranks.
        gone = (rank for rank in range(world_size) if rank not in self.ranks)
        if missing := [str(rank) for rank in islice(gone, _NAMED)]:
            rest = world_size - len(self.ranks) - len(missing)
            more = f" and {rest:,} more" if rest else ""
            raise MismatchError(
                f"the state was saved by {world_size} ranks, and the parts of ranks "
                f"{', '.join(missing)}{more} are missing; to resume on another number of ranks "
                "give every rank the parts of all: evenstep.merge_states(states), or "
                "evenstep.read_states(checkpoint)"
            )
        ranks = [self.ranks[rank] for rank in range(world_size)]
        with parsing("what the ranks' states say is left", remedy=REMEDY, error=MismatchError):
            if first.dealt:
                held = np.concatenate([rank.remaining.places for rank in ranks])
                stream = first.stream.rest(held, first.start.next_entry)
            else:
                stream = first.stream.after([rank.place_progress for rank in ranks])
        return EpochProgress(
            epoch=first.epoch,
            stream=stream,
            dealt=first.dealt,
            start=replace(
                first.start.fresh(other_ranks=True),
                round=first.start.round + bool(first.received),
                step=first.step,
            ),
            checksum_before_reshard=self._order_checksum(first.stream)
            or first.checksum_before_reshard,
            samples=first.samples,
            too_long=(
                before := first.too_long[0] + sum(rank.own_too_long for rank in ranks),
                before,
            ),
        )

    def _order_checksum(self, stream: Stream) -> OrderChecksum | None:
        """The checksum of the first rank that has one, by positions of the epoch."""
        for rank, progress in sorted(self.ranks.items()):
            if progress.checksum.places:
                entries = np.array(progress.checksum.places, np.int64)
                if not progress.dealt:
                    entries = entries * len(self.ranks) + rank
                if stream.whole:  # beyond the end are the repeats that make shares even
                    entries %= len(stream)
                positions = stream.positions(entries).tolist()
                return OrderChecksum(places=tuple(positions), digest=progress.checksum.digest)
        return None


def _rank_of(key: str, world_size: int | None) -> int:
    rank = int(key.removeprefix(_RANK_PREFIX))
    if key != rank_key(rank) or rank not in range(world_size or 0):
        raise ValueError(f"there is no rank {key} of {world_size}")
    return rank


def merge_states(states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One state out of all ranks', from which any number of ranks can resume.

    Every sample that was not trained on comes once. Batches are formed again: for exactly those
    that would have come, load each rank's own state on as many ranks instead. Needs no process
    group, no dataset and no GPU.

    Args:
        states: what `DataLoader.state_dict` returned on every rank at the same step, in any order.

    Returns:
        A state that `DataLoader.load_state_dict` takes, the same on every rank.

    Raises:
        MismatchError: the states are not those of all ranks of one job at one step.
    """
    if not states:
        raise MismatchError("no states to merge; give those of all ranks")
    read = [LoaderState.read(state) for state in states]
    for number, other in enumerate(read):
        for name in ("job", "epoch"):
            mine, theirs = getattr(read[0], name), getattr(other, name)
            for key in mine:
                if mine[key] != theirs.get(key):
                    raise MismatchError(
                        f"states 0 and {number} differ in {name} {key}: {shorten(mine[key])} and "
                        f"{shorten(theirs.get(key))}; merge the states of one checkpoint"
                    )
    ranks = {rank: progress for one in read for rank, progress in one.ranks.items()}
    whole = LoaderState(job=read[0].job, epoch=read[0].epoch, ranks=ranks, merged=read[0].merged)
    progress = whole.merged or whole.resharded()
    return headed(_OF, job={**whole.job, "world_size": None}, epoch=progress.shared_dict())


def read_states(checkpoint: str | os.PathLike[str], key: str = "loader") -> dict[str, Any]:
    """One state with the parts of all ranks, for `DataLoader.load_state_dict` on any number of
    ranks.

    Args:
        checkpoint: folder written by ``torch.distributed.checkpoint.save``.
        key: the key under which the loader's state was saved; with dots where it was nested.

    Raises:
        MismatchError: the checkpoint has nothing under `key`.
        ConfigurationError: there is no checkpoint, or it is damaged.
    """
    # Imported here because it takes a second.
    from torch.distributed.checkpoint.api import CheckpointException

    try:
        return _read(checkpoint, f"{key}.")
    except EvenstepError:
        raise
    except CheckpointException as error:  # which is not an Exception
        causes = [described(cause) for cause, _ in error.failures.values()]
        raise _unreadable(checkpoint, "; ".join(causes)) from error
    except Exception as error:  # of a damaged pickle, whatever it names
        raise _unreadable(checkpoint, described(error)) from error


def _read(checkpoint: str | os.PathLike[str], prefix: str) -> dict[str, Any]:
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.state_dict_loader import load

    reader = FileSystemReader(checkpoint)
    metadata = reader.read_metadata()
    found: dict[str, Any] = {
        name: None for name in metadata.state_dict_metadata if name.startswith(prefix)
    }
    if not found:
        some = sorted({name.split(".")[0] for name in metadata.state_dict_metadata})
        raise MismatchError(
            f"the checkpoint {os.fspath(checkpoint)} has nothing under {prefix[:-1]!r}, only under "
            f"{some}; give the key under which the loader was saved"
        )
    with warnings.catch_warnings():
        # Each rank reads by itself on purpose.
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        load(found, storage_reader=reader, no_dist=True)
    state: dict[str, Any] = {}
    for name, value in found.items():
        inner = state
        *outer, last = name.removeprefix(prefix).split(".")
        for part in outer:
            inner = inner.setdefault(part, {})
        inner[last] = value
    return state


def _unreadable(checkpoint: str | os.PathLike[str], why: str) -> ConfigurationError:
    return ConfigurationError(
        f"the checkpoint {os.fspath(checkpoint)} cannot be read: {why}; give the whole folder that "
        "torch.distributed.checkpoint.save wrote"
    )
