"""Datasets of torch, of Hugging Face, or your own: what they can do, and how to resume them.

`ResumableIterable` reads anything that yields samples, and resumes it where a reading stopped. An
iterator or dataset that knows its position is asked for it, by ``state_dict`` and
``load_state_dict``. For any other, the samples read so far are counted; a resume reads that many
again and drops them, or skips them if samples have an index. Such a dataset must come in the same
order each time.
"""

from __future__ import annotations

import copy
import hashlib
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from torch.utils.data import IterableDataset, get_worker_info

from evenstep.data.shares import is_streamed
from evenstep.errors import ConfigurationError, MismatchError


def dataset_size(dataset: Any, *, iterable: bool) -> int | None:
    """Samples; None if unknown, or of an iterable dataset, whose length may be a rank's share."""
    if iterable or not hasattr(dataset, "__len__"):
        return None
    return len(dataset)


def dataset_fingerprint(dataset: Any, *, iterable: bool) -> dict[str, Any]:
    """Type, size, and the dataset's own `fingerprint`, an attribute or a method that returns text.
    For a map-style dataset of Hugging Face it is a digest of stored rows."""
    own = getattr(dataset, "fingerprint", None)
    own = own() if callable(own) else own
    # A package of the user's may be named `datasets`, too.
    theirs = type(dataset).__module__.startswith("datasets.") and hasattr(dataset, "with_format")
    if own is None and not iterable and theirs:
        own = _digest_of_rows(dataset)
    return {
        "type": type(dataset).__qualname__,
        "size": dataset_size(dataset, iterable=iterable),
        "fingerprint": None if own is None else str(own),
    }


_ROWS = 64


def _digest_of_rows(dataset: Any) -> str:
    """Of evenly spaced rows as they are stored, before any transform. The dataset's own fingerprint
    would not do: where `map` was given a function that holds a tokenizer or a logger, it may differ
    between ranks and from one start of the job to the next, for the same rows."""
    size = len(dataset)
    rows = sorted({number * size // _ROWS for number in range(_ROWS)}) if size else []
    stored = dataset.with_format("arrow")[rows].to_pylist() if rows else []
    return hashlib.sha256(repr(stored).encode()).hexdigest()[:16]


def has_state(owner: Any) -> bool:
    """Whether an iterable dataset or its iterator can save and load its position."""
    methods = (getattr(owner, name, None) for name in ("state_dict", "load_state_dict"))
    return all(map(callable, methods)) and not leaves_rows_out(owner)


def leaves_rows_out(dataset: Any) -> bool:
    """Whether it is a streamed dataset of Hugging Face that shuffles in a buffer: a resume from its
    own state skips the rows that were in the buffer."""
    if not is_streamed(dataset):
        return False
    stages = [getattr(dataset, "_ex_iterable", None)]
    while stages:
        stage = stages.pop()
        if type(stage).__name__ == "BufferShuffledExamplesIterable":
            return True
        stages += [
            *getattr(stage, "ex_iterables", ()),
            *filter(None, [getattr(stage, "ex_iterable", None)]),
        ]
    return False


def tell_epoch(dataset: Any, epoch: int) -> None:
    """Calls ``set_epoch`` of a dataset that has it."""
    set_epoch = getattr(dataset, "set_epoch", None)
    if callable(set_epoch):
        set_epoch(epoch)


def is_map_style(dataset: Any) -> bool:
    """Whether samples are read by index."""
    return (
        hasattr(dataset, "__getitem__")
        and hasattr(dataset, "__len__")
        and not isinstance(dataset, IterableDataset)
    )


class Rewinder:
    """Brings a dataset that keeps its own position back to its beginning before a pass.

    After a pass that was abandoned or resumed from a state, such a dataset may be at any position,
    and the next pass over it would be short.
    """

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self._initial_state: Any = None  # before the first pass
        self._started = False
        self._moved = False  # the dataset itself may not be at its beginning

    def begin(self, *, here: bool = True) -> bool:
        """Rewinds for a pass that begins now.

        Args:
            here: the pass reads the dataset of this process. If not, it reads a copy, which cannot
                be rewound from here: its owner must make a new copy if the result is True.

        Returns:
            Whether the dataset may have been moved before this pass.
        """
        moved = self._moved
        if here:
            if has_state(self._dataset) and not self._started:
                self._initial_state = copy.deepcopy(self._dataset.state_dict())
            elif has_state(self._dataset) and moved:
                self._dataset.load_state_dict(copy.deepcopy(self._initial_state))
            self._started = True
        self._moved = True
        return moved

    def finish(self, *, whole: bool) -> None:
        """Notes that a pass has ended; `whole` if it began at the beginning."""
        # Datasets return to their beginning at their end, but a loaded state may prevent it.
        self._moved = not whole and has_state(self._dataset)


class Reading:
    """One pass over a dataset. Made by `ResumableIterable.read`."""

    def __init__(self, iterator: Iterator[Any], kind: str, owner: Any, count: int) -> None:
        self._iterator, self._kind, self._owner, self._count = iterator, kind, owner, count

    def take(self, most: int) -> list[Any]:
        """The next samples; fewer than asked for only at the end."""
        samples = list(itertools.islice(self._iterator, most))
        self._count += len(samples)
        return samples

    def resume_point(self) -> dict[str, Any]:
        """From it, `ResumableIterable.read` yields the samples that come next here."""
        state = None if self._kind == "count" else self._owner.state_dict()
        return {"of": self._kind, "count": self._count, "state": copy.deepcopy(state)}


class ResumableIterable:
    """See the module docstring."""

    def __init__(self, dataset: Any) -> None:
        """
        Raises:
            ConfigurationError: it yields no samples, or only once.
        """
        if callable(getattr(dataset, "__next__", None)):
            raise ConfigurationError(
                f"a {type(dataset).__name__} is used up by one pass; give what makes it: an "
                "iterable dataset, or a function that returns a new one each time"
            )
        self.dataset = dataset
        self._map_style = is_map_style(dataset)
        if not (self._map_style or hasattr(dataset, "__iter__") or callable(dataset)):
            raise ConfigurationError(
                f"a {type(dataset).__name__} yields no samples; give an iterable or map-style "
                "dataset, or a function that returns an iterator"
            )
        self.rewinder = Rewinder(dataset)

    def read(self, point: Mapping[str, Any] | None = None) -> Reading:
        """Begins a pass.

        Args:
            point: `Reading.resume_point` of an earlier pass; None for the beginning.

        Raises:
            MismatchError: the point was saved by a dataset that keeps its position in another way.
        """
        self.rewinder.begin()
        kind = point["of"] if point is not None else None
        if point is not None and kind == "dataset" and has_state(self.dataset):
            self.dataset.load_state_dict(copy.deepcopy(point["state"]))
        count = int(point["count"]) if point is not None else 0
        iterator = self._open(count if kind == "count" else 0)
        found, owner = self._position_owner(iterator)
        if point is not None and kind != found:
            raise MismatchError(
                f"the state is of a dataset whose position is kept by its {kind}, and that of "
                f"{type(self.dataset).__name__} is kept by its {found}; load the state with the "
                "dataset that it was saved with"
            )
        if point is not None and kind == "iterator":
            owner.load_state_dict(copy.deepcopy(point["state"]))
        return Reading(iterator, found, owner, count)

    def _open(self, skip: int) -> Iterator[Any]:
        if self._map_style:
            info = get_worker_info()
            first, step = (info.id, info.num_workers) if info is not None else (0, 1)
            indices = range(first, len(self.dataset), step)[skip:]
            return (self.dataset[index] for index in indices)
        made = self.dataset if hasattr(self.dataset, "__iter__") else self.dataset()
        iterator: Iterator[Any] = iter(made)
        for _ in itertools.islice(iterator, skip):
            pass
        return iterator

    def _position_owner(self, iterator: Iterator[Any]) -> tuple[str, Any]:
        """What keeps the position: its kind in a resume point, and the object itself."""
        if self._map_style:
            return "count", None
        if has_state(iterator):
            return "iterator", iterator
        if has_state(self.dataset):
            return "dataset", self.dataset
        return "count", None
