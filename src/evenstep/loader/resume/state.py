"""A loader's state as JSON-able values: what is saved with a model, and what is loaded.

    {"version": 1,
     "job":   how the loader is built: policy, dataset, order, seed, ranks, buffer
     "epoch": how far the epoch is: the same on all ranks, if all were saved at the same step
     "dp_rank_3": what only rank 3 knows: its window, and which of it has been trained on}

A rank's own key lets ``torch.distributed.checkpoint`` keep every rank's part. The parts of all
ranks together say which samples of the epoch have not been trained on, so any number of ranks can
go on: see `merge_states`. All keys are there at all times.

Size: per rank five numbers for each sample of a window; after a change of the number of ranks, one
number more, on all ranks alike, for each sample that was in some rank's window then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from evenstep.errors import MismatchError
from evenstep.loader.resume.epoch_progress import EpochProgress
from evenstep.loader.resume.sample_order import OrderChecksum
from evenstep.plan.epoch.stream import Stream
from evenstep.protocol.window_buffer import RoundStart

__all__ = ["VERSION", "LoaderState", "check_job", "merge_states", "rank_key", "to_dict"]

VERSION = 1

# What may differ between the checkpoint and the loader that loads it.
_FREE = ("world_size", "buffer_size")


def rank_key(rank: int) -> str:
    return f"dp_rank_{rank}"


def to_dict(job: Mapping[str, Any], position: EpochProgress, rank: int) -> dict[str, Any]:
    """The state of one rank."""
    return {
        "version": VERSION,
        "job": dict(job),
        "epoch": _epoch_dict(position),
        rank_key(rank): position.to_dict(),
    }


def _epoch_dict(position: EpochProgress) -> dict[str, Any]:
    stream = position.stream
    return {
        "number": position.epoch,
        "round": position.start.round,
        "step": position.start.step,
        "received": position.received,
        "order": position.order.to_dict(),
        "stream": None  # a stream of which nothing is left is false
        if stream is None
        else {"total": stream.total, "tail": stream.tail, "leftover": stream.leftover.tolist()},
    }


@dataclass(frozen=True, kw_only=True)
class LoaderState:
    """A state that has been read."""

    job: Mapping[str, Any]
    epoch: Mapping[str, Any]
    ranks: Mapping[int, EpochProgress]
    """Of those ranks whose part it has; none in a merged state."""
    merged: EpochProgress | None
    """Where a merged state goes on, on any number of ranks."""

    @classmethod
    def read(cls, state: Mapping[str, Any]) -> LoaderState:
        """
        Raises:
            MismatchError: this is no state of a loader, or one of a newer version.
        """
        version = state.get("version") if isinstance(state, Mapping) else None
        if version != VERSION:
            raise MismatchError(
                f"a loader's state of version {VERSION} was expected, and this one has "
                f"version={version!r}; load what evenstep.DataLoader.state_dict() gave, with the "
                "evenstep that wrote it or a newer one"
            )
        try:
            epoch, job = state["epoch"], state["job"]
            _check_kinds(epoch, _EPOCH_KINDS)
            _check_kinds(job, _JOB_KINDS)
            for key, part in state.items():
                if key.startswith("dp_rank_"):
                    _check_kinds(part, _RANK_KINDS)
            stream = None
            if epoch["stream"] is not None:
                stream = Stream(
                    epoch["stream"]["total"],
                    epoch["stream"]["tail"],
                    np.array(epoch["stream"]["leftover"], np.int64),
                )
            where = {
                "epoch": epoch["number"],
                "round": epoch["round"],
                "step": epoch["step"],
                "received": epoch["received"],
                "stream": stream,
                "order": OrderChecksum.from_dict(epoch["order"]),
            }
            ranks = {
                int(key.removeprefix("dp_rank_")): EpochProgress.from_dict(part, **where)
                for key, part in state.items()
                if key.startswith("dp_rank_")
            }
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise MismatchError(
                f"the loader's state is damaged: {type(error).__name__}: {error}; load it as "
                "DataLoader.state_dict() gave it"
            ) from error
        merged = None
        if job["world_size"] is None:
            start = RoundStart.empty(epoch["round"], epoch["step"])
            merged = EpochProgress(
                epoch=epoch["number"], stream=stream, start=start, order=where["order"]
            )
        elif not ranks:
            raise MismatchError(
                "the state has the part of no rank; give every rank the state that it saved, or "
                "the parts of all: evenstep.merge_states(states)"
            )
        return cls(job=job, epoch=epoch, ranks=ranks, merged=merged)

    def position(self, rank: int, world_size: int) -> EpochProgress:
        """Where `rank` of `world_size` ranks goes on.

        Raises:
            MismatchError: the state does not say it.
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
        return self._dealt_anew()

    def _dealt_anew(self) -> EpochProgress:
        """What is left of the epoch, for any number of ranks."""
        some = next(iter(self.ranks.values()))
        round, step = some.start.round + bool(some.received), some.step
        if all(position.untouched for position in self.ranks.values()):
            return EpochProgress(epoch=some.epoch, stream=some.stream)
        world_size = self.job["world_size"]
        if some.stream is None:
            raise MismatchError(
                f"the state was saved by {world_size} ranks in the middle of epoch {some.epoch}, "
                "in which each had an order of its own, or a policy had planned the epoch for that "
                "many, so its rest cannot be dealt out to another number of ranks; go on with as "
                "many, or let evenstep shard, under an online policy: shuffle= or "
                "shard_sampler=True"
            )
        if missing := sorted(set(range(world_size)) - self.ranks.keys()):
            raise MismatchError(
                f"the state was saved by {world_size} ranks, and the parts of ranks {missing} are "
                "missing; to go on with another number of ranks give every rank the parts of all: "
                "evenstep.merge_states(states), or evenstep.read_states(checkpoint)"
            )
        parts = [self.ranks[rank].place_progress for rank in range(world_size)]
        return EpochProgress(
            epoch=some.epoch,
            stream=some.stream.after(parts),
            start=RoundStart.empty(round, step),
            order=self._order(some.stream, some.order),
        )

    def _order(self, stream: Stream, before: OrderChecksum) -> OrderChecksum:
        """Some rank's witness, by positions of the epoch."""
        for rank, position in sorted(self.ranks.items()):
            if position.witness.places:
                entries = np.array(position.witness.places, np.int64) * len(self.ranks) + rank
                if stream.whole:  # beyond the end are the repeats that make shares even
                    entries %= len(stream)
                places = stream.positions(entries).tolist()
                return OrderChecksum(places=tuple(places), digest=position.witness.digest)
        return before


def merge_states(states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One state out of all ranks', from which any number of ranks can go on.

    Every sample that was not trained on comes once. The batches are formed anew: to have exactly
    those that would have come, load each rank's own state on as many ranks instead. Needs no
    process group, no dataset and no GPU.

    Args:
        states: what `DataLoader.state_dict` gave on every rank at the same step, in any order.

    Returns:
        A state that `DataLoader.load_state_dict` takes, on every rank the same.

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
                        f"states 0 and {number} differ in {name} {key}: {_short(mine[key])} and "
                        f"{_short(theirs.get(key))}; merge the states of one checkpoint"
                    )
    ranks = {rank: position for one in read for rank, position in one.ranks.items()}
    whole = LoaderState(job=read[0].job, epoch=read[0].epoch, ranks=ranks, merged=read[0].merged)
    position = whole.merged or whole._dealt_anew()
    return {
        "version": VERSION,
        "job": {**whole.job, "world_size": None},
        "epoch": _epoch_dict(position),
    }


def check_job(saved: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """
    Raises:
        MismatchError: a loader is built differently than the one whose state it loads.
    """
    for key in now:
        if key not in _FREE and saved.get(key) != now[key]:
            raise MismatchError(
                f"the state was saved with another {key}: {_short(saved.get(key))}, and this "
                f"loader has {_short(now[key])}; build it as before, or begin a new epoch without "
                "loading the state"
            )


_STREAM_KINDS = {"total": int, "tail": int, "leftover": [int]}
_EPOCH_KINDS = {
    "number": int,
    "round": int,
    "step": int,
    "received": int,
    "order": {"places": [int], "digest": int},
    "stream": (_STREAM_KINDS, None),
}
_JOB_KINDS = {
    "world_size": (int, None),
    "buffer_size": int,
    "iterable": ({"num_workers": int, "chunk_size": int}, None),
}
_RANK_KINDS = {
    **{key: [int] for key in ("numbers", "lengths", "supervised", "patches", "ages", "trained")},
    "taken": int,
    "quota": (int, None),
    "share": {"tail": int, "leftover": [int]},
    "witness": {"places": [int], "digest": int},
    "sources": (str, None),
    "skipped": list,
}


def _check_kinds(value: Any, kind: Any, path: str = "") -> None:
    """Raises `TypeError` where a value is not of the kind: a type, fields by name, a list of one
    kind, or one of several kinds."""
    if isinstance(kind, dict) and isinstance(value, Mapping):
        for name, inner in kind.items():
            _check_kinds(value[name], inner, f"{path}.{name}")
    elif isinstance(kind, list) and isinstance(value, list):
        for item in value:
            _check_kinds(item, kind[0], path)
    elif isinstance(kind, tuple):
        if value is not None:
            _check_kinds(value, kind[0], path)
    elif not isinstance(kind, type) or not isinstance(value, kind):
        raise TypeError(f"{path.lstrip('.')} is {_short(value)}")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 200 else f"{text[:200]}..."
