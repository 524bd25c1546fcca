"""`ResumableIterable`: anything that yields samples, and the place from which to go on with it.

What can say where it is, is asked: an iterator or dataset with ``state_dict`` and
``load_state_dict``, or a dataset with Megatron-Energon's ``save_state`` and ``restore_state``. Of
all others the samples that were read are counted; to go on, as many are read again and thrown away,
or skipped where samples have an index. So those must come in the same order each time.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from torch.utils.data import IterableDataset, get_worker_info

from evenstep.errors import ConfigurationError, MismatchError
from evenstep.loader.workers.iterable import has_state

__all__ = ["Reading", "ResumableIterable", "is_savable"]


def is_savable(dataset: Any) -> bool:
    """Whether a dataset keeps its place as those of Megatron-Energon do."""
    return callable(getattr(dataset, "save_state", None)) and callable(
        getattr(dataset, "restore_state", None)
    )


class Reading:
    """One pass over an upstream."""

    def __init__(self, iterator: Iterator[Any], kind: str, owner: Any, count: int) -> None:
        self._iterator, self._kind, self._owner, self._count = iterator, kind, owner, count

    def take(self, most: int) -> list[Any]:
        """The next samples; fewer than asked for only at the end."""
        samples = list(itertools.islice(self._iterator, most))
        self._count += len(samples)
        return samples

    def place(self) -> dict[str, Any]:
        """Where `ResumableIterable.read` goes on to have the samples that come next."""
        state: Any = None
        if self._kind == "savable":
            state = self._owner.save_state()
        elif self._kind != "count":
            state = self._owner.state_dict()
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
        self.indexed = (
            hasattr(dataset, "__getitem__")
            and hasattr(dataset, "__len__")
            and not isinstance(dataset, IterableDataset)
        )
        if not (self.indexed or hasattr(dataset, "__iter__") or callable(dataset)):
            raise ConfigurationError(
                f"a {type(dataset).__name__} yields no samples; give an iterable or map-style "
                "dataset, or a function that returns an iterator"
            )
        self._fresh: Any = None  # its state before the first pass
        self._begun = self._astray = False

    def read(self, place: Mapping[str, Any] | None = None) -> Reading:
        """Begins a pass.

        Args:
            place: `Reading.place` of an earlier one; None for the beginning.

        Raises:
            MismatchError: the place is of an upstream that kept it otherwise.
        """
        self._bring_back()
        kind = place["of"] if place is not None else None
        if place is not None and kind == "dataset" and has_state(self.dataset):
            self.dataset.load_state_dict(copy.deepcopy(place["state"]))
        elif place is not None and kind == "savable" and is_savable(self.dataset):
            self.dataset.restore_state(copy.deepcopy(place["state"]))
        count = int(place["count"]) if place is not None else 0
        iterator = self._open(count if kind == "count" else 0)
        found, owner = self._keeper(iterator)
        if place is not None and kind != found:
            raise MismatchError(
                f"the state is of a dataset whose place was kept by its {kind}, and that of "
                f"{type(self.dataset).__name__} is kept by its {found}; load the state with the "
                "dataset that it was saved with"
            )
        if place is not None and kind == "iterator":
            owner.load_state_dict(copy.deepcopy(place["state"]))
        return Reading(iterator, found, owner, count)

    def finished(self, *, whole: bool) -> None:
        """A pass has come to its end, and began at the beginning if it was `whole`."""
        # Datasets go back to their beginning at their end, but what was loaded may be in the way.
        # Not so those of Megatron-Energon, of which the next pass has another order.
        self._astray = not whole and has_state(self.dataset)

    def _bring_back(self) -> None:
        """To the beginning, where a pass that was left has moved the dataset itself."""
        if has_state(self.dataset):
            if not self._begun:
                self._fresh = copy.deepcopy(self.dataset.state_dict())
            elif self._astray:
                self.dataset.load_state_dict(copy.deepcopy(self._fresh))
        elif self._astray:
            self.reset()
        self._begun = self._astray = True

    def reset(self) -> None:
        """To the beginning, as a dataset of Megatron-Energon is when its loader says so."""
        if callable(reset := getattr(self.dataset, "reset_state_deep", None)):
            reset()
        self._astray = False

    def _open(self, skip: int) -> Iterator[Any]:
        if self.indexed:
            info = get_worker_info()
            first, step = (info.id, info.num_workers) if info is not None else (0, 1)
            places = range(first, len(self.dataset), step)[skip:]
            return (self.dataset[index] for index in places)
        made = self.dataset if hasattr(self.dataset, "__iter__") else self.dataset()
        iterator: Iterator[Any] = iter(made)
        for _ in itertools.islice(iterator, skip):
            pass
        return iterator

    def _keeper(self, iterator: Iterator[Any]) -> tuple[str, Any]:
        if self.indexed:
            return "count", None
        if has_state(iterator):
            return "iterator", iterator
        if has_state(self.dataset):
            return "dataset", self.dataset
        if is_savable(self.dataset):
            return "savable", self.dataset
        return "count", None
