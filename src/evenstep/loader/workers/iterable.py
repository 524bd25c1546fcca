"""Iterable datasets: chunks in a fixed order, and where each worker has to go on.

The workers take turns, one chunk each, and none drops out: one that has ended hands over empty
chunks until all have. So which sample comes when depends on the dataset alone, and a chunk's
worker on nothing but its number. With each chunk comes the state from which its worker goes on;
a `WorkerStateLog` keeps those that may still be needed.
"""

from __future__ import annotations

import itertools
import json
import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch.utils.data import IterableDataset, get_worker_info

from evenstep.errors import SampleError
from evenstep.loader.workers.chunks import Chunk, Origin, Raw, Transparent

__all__ = ["ChunkedIterable", "WorkerStateLog", "WorkerStates", "has_state"]


@dataclass(frozen=True, kw_only=True)
class WorkerStates:
    """Where the workers of one rank go on."""

    place: int
    """Place in the rank's share of the first sample that they then yield."""
    turn: int
    """The worker that yields it."""
    workers: tuple[str | None, ...]
    """`Origin.state` of each; None for its beginning."""

    def to_json(self) -> str:
        return json.dumps([self.place, self.turn, self.workers])

    @classmethod
    def from_json(cls, text: str) -> WorkerStates:
        place, turn, workers = json.loads(text)
        return cls(place=place, turn=turn, workers=tuple(workers))


class ChunkedIterable(Transparent, IterableDataset):  # type: ignore[type-arg]
    """The chunks of an iterable dataset, in one worker."""

    def __init__(self, dataset: Any, chunk_size: int, *, replays: bool) -> None:
        """
        Args:
            replays: to go on where a dataset has no state, read it from its beginning and throw
                away what came before.
        """
        super().__init__(dataset)
        for name, value in (
            ("_chunk_size", chunk_size),
            ("_replays", replays),
            ("_sources", None),
            ("_last", None),
        ):
            object.__setattr__(self, name, value)

    def begin(self, sources: WorkerStates | None) -> None:
        """Where the next iteration, and only that, begins."""
        self._sources = sources

    def __iter__(self) -> Iterator[Raw]:
        sources, self._sources = self._sources, None  # persistent workers iterate again
        info = get_worker_info()
        worker = info.id if info is not None else 0
        if sources is not None and worker < sources.turn:
            yield Raw([], [], Origin(worker, sources.workers[worker], False))
        yield from self._chunks(worker, sources.workers[worker] if sources else None)
        while True:  # the intake stops asking when all workers have ended
            yield Raw([], [], Origin(worker, self._last, True))

    def _chunks(self, worker: int, state: str | None) -> Iterator[Raw]:
        if state is not None and json.loads(state)["ended"]:
            # Datasets may go back to their beginning at their end, so they are not asked.
            object.__setattr__(self, "_last", state)
            return
        count, iterator, owner = self._open(state)
        ended = False
        while not ended:
            samples: list[Any] = []
            try:
                samples.extend(itertools.islice(iterator, self._chunk_size))
            except SampleError:
                raise
            except Exception as error:
                raise SampleError(
                    f"the dataset raised {type(error).__name__} after {count + len(samples)} "
                    f"samples of worker {worker}: {error}; mend or leave out the sample"
                ) from error
            names = [f"sample number {count + i} of its worker" for i in range(len(samples))]
            count += len(samples)
            ended = len(samples) < self._chunk_size
            last = self._state(count, owner, ended)
            object.__setattr__(self, "_last", last)
            yield Raw(samples, names, Origin(worker, last, ended))

    def _open(self, text: str | None) -> tuple[int, Any, Any]:
        """Samples yielded before, the iterator, and what has the state: it or the dataset."""
        saved: Any = json.loads(text) if text is not None else {"count": 0, "state": None}
        state, count = saved["state"], int(saved["count"])
        dataset = self._dataset
        if state is not None and saved["of"] == "dataset":
            dataset.load_state_dict(state)
        iterator = iter(dataset)
        if state is not None and saved["of"] == "iterator":
            iterator.load_state_dict(state)
        if state is None:
            for _ in itertools.islice(iterator, count):
                pass
        owner = next((o for o in (iterator, dataset) if has_state(o)), None)
        return count, iterator, owner

    def _state(self, count: int, owner: Any, ended: bool) -> str | None:
        if owner is None and not self._replays:
            return None
        state = {
            "count": count,
            "ended": ended,
            "of": "dataset" if owner is self._dataset else "iterator",
            "state": owner.state_dict() if owner is not None else None,
        }
        try:
            _check_names(state)
            return json.dumps(state, default=_plain)
        except TypeError as error:
            raise SampleError(
                f"state_dict() of {type(owner).__name__} is not made of what JSON has ({error}); "
                "return numbers, text, lists and dictionaries"
            ) from error


def has_state(owner: Any) -> bool:
    """Whether an iterable dataset or its iterator can say where it is, and go there."""
    return callable(getattr(owner, "state_dict", None)) and callable(
        getattr(owner, "load_state_dict", None)
    )


def _check_names(value: Any) -> None:
    """JSON makes text of a key that is a number, so it would not be found again."""
    if isinstance(value, dict):
        for name, inner in value.items():
            if not isinstance(name, str):
                raise TypeError(f"it holds the key {name!r}, which is not text")
            _check_names(inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            _check_names(inner)


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"it holds a {type(value).__name__}")


class WorkerStateLog:
    """Remembers the states from which samples that are not planned yet can be had again.

    Thread-safe: one thread adds, another asks.
    """

    def __init__(self, workers: int, sources: WorkerStates | None = None) -> None:
        self._lock = threading.Lock()
        self._base: list[str | None] = list(sources.workers) if sources else [None] * workers
        self._chunks: deque[tuple[int, Origin]] = deque()  # first place, and origin
        self._place = sources.place if sources else 0
        self._turn = sources.turn if sources else 0
        self._stateless = False

    def add(self, chunk: Chunk) -> int:
        """Notes a chunk; gives the place of its first sample."""
        assert chunk.origin is not None
        with self._lock:
            begin = self._place
            if not chunk.size and not chunk.origin.ended:
                return begin  # of a worker that waits for its turn: see `ChunkedIterable.__iter__`
            self._place += chunk.size
            self._turn = (chunk.origin.worker + 1) % len(self._base)
            self._chunks.append((begin, chunk.origin))
            return begin

    def since(self, place: int) -> WorkerStates | None:
        """How to have all samples from `place` on again; no earlier one is asked for after this.
        None where the dataset cannot say."""
        with self._lock:
            while self._chunks:
                following = self._chunks[1][0] if len(self._chunks) > 1 else self._place
                if following > place:
                    break
                begin, origin = self._chunks.popleft()
                self._base[origin.worker] = origin.state
                self._stateless |= origin.state is None and following > begin
            if self._stateless:
                return None
            begin, turn = self._place, self._turn
            if self._chunks:
                begin, origin = self._chunks[0]
                turn = origin.worker
            return WorkerStates(place=begin, turn=turn, workers=tuple(self._base))
