"""Iterable datasets that deal samples out among their workers unevenly, with states and without."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from torch.utils.data import IterableDataset

from evenstep.loader.workers import iterable


class Stream(IterableDataset):  # type: ignore[type-arg]
    """Cannot say where it is."""

    def __init__(self, samples: Sequence[Any]) -> None:
        self.samples = samples

    def mine(self) -> list[int]:
        """Of four workers or more some have none."""
        info = iterable.get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        return [i for i in range(len(self.samples)) if (i * i) % 7 % workers == worker]

    def __iter__(self) -> Iterator[Any]:
        return (self.samples[index] for index in self.mine())


class StatefulStream(Stream):
    """Knows how many samples it has yielded, and begins again after the last."""

    position = 0

    def __iter__(self) -> Iterator[Any]:
        mine = self.mine()
        while self.position < len(mine):
            self.position += 1
            yield self.samples[mine[self.position - 1]]
        self.position = 0

    def state_dict(self) -> dict[str, Any]:
        return {"position": np.int64(self.position)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.position = state["position"]


class StatefulIterator:
    def __init__(self, samples: list[Any]) -> None:
        self.samples, self.position = samples, 0

    def __iter__(self) -> StatefulIterator:
        return self

    def __next__(self) -> Any:
        if self.position >= len(self.samples):
            raise StopIteration
        self.position += 1
        return self.samples[self.position - 1]

    def state_dict(self) -> dict[str, Any]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.position = state["position"]


class WithIterator(Stream):
    """Its iterators know where they are."""

    def __iter__(self) -> Any:
        return StatefulIterator([self.samples[index] for index in self.mine()])
