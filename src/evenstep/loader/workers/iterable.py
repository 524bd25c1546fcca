"""Iterable datasets: chunks in a fixed order, and the states from which workers resume.

The workers take turns, one chunk each, and none drops out: one that has ended yields empty chunks
until all have ended. So the order of samples depends on the dataset alone, and a chunk's worker
only on the chunk's number. Each chunk carries the state from which its worker resumes after it.
`ChunkedIterable` runs in the workers; `WorkerStateLog` runs in the batcher and keeps the states
that may still be needed.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from torch.utils.data import IterableDataset, get_worker_info

from evenstep.data.mixed_pass import MixedPass
from evenstep.data.resumable import has_state
from evenstep.data.shares import share_of
from evenstep.errors import EvenstepError, SampleError, described
from evenstep.loader.transport.plain_values import decode, encode
from evenstep.loader.workers.chunks import Chunk, ChunkOrigin, Preparation, RawChunk, Splitting


@dataclass(frozen=True, kw_only=True)
class WorkerStates:
    """Where the workers of one rank resume."""

    place: int
    """Place in the rank's share of the first sample that they will yield."""
    turn: int
    """The worker that will yield it."""
    workers: tuple[str | None, ...]
    """[workers] `ChunkOrigin.state` of each; None for its beginning."""

    def to_json(self) -> str:
        return json.dumps([self.place, self.turn, self.workers])

    @classmethod
    def from_json(cls, text: str) -> WorkerStates:
        """
        Raises:
            KeyError, TypeError, ValueError: it is not what `to_json` returned.
        """
        place, turn, workers = json.loads(text)
        saved = [json.loads(state) for state in workers if state is not None]
        if type(turn) is not int or turn not in range(len(workers)):
            raise ValueError(f"turn {turn!r} of {len(workers)} workers")
        if type(place) is not int or sum(_count(state) for state in saved) != place:
            raise ValueError(f"workers have not yielded {place!r} samples together")
        return cls(place=place, turn=turn, workers=tuple(workers))


def _count(state: Any) -> int:
    """Samples that a worker had yielded, after a check of its state."""
    count, rows = state["count"], state.get("rows", 0)
    known = state["of"] in ("dataset", "iterator")
    decode(state["state"])
    if (
        type(rows) is not int
        or not rows >= 0
        or type(count) is not int
        or count < rows
        or type(state["ended"]) is not bool
        or not known
    ):
        raise ValueError(f"{state!r} is not the state of a worker")
    return count


_ALL = partial(share_of, rank=0, ranks=1, dealt=False)


class ChunkedIterable(IterableDataset):  # type: ignore[type-arg]
    """The chunks of an iterable dataset, in one worker."""

    def __init__(
        self,
        dataset: Any,
        chunk_size: int,
        preparation: Preparation,
        *,
        replays: bool,
        split: Splitting | None = None,
        share: Callable[[Any], Any] = _ALL,
    ) -> None:
        """
        Args:
            preparation: of each sample.
            split: of samples that are too long.
            replays: to resume a dataset that has no state, read it from its beginning and drop the
                samples that were read before.
            share: what a worker reads of the dataset: see `evenstep.data.shares`.
        """
        self.dataset = dataset
        self._share = share
        self._chunk_size = chunk_size
        self._replays = replays
        self._preparation = preparation
        self._split = split
        self._worker_states: WorkerStates | None = None
        self._last: str | None = None

    def begin(self, states: WorkerStates | None) -> None:
        """Sets the states in which the next pass, and only that, begins."""
        self._worker_states = states

    def __iter__(self) -> Iterator[RawChunk]:
        states, self._worker_states = self._worker_states, None  # persistent workers iterate again
        info = get_worker_info()
        worker = info.id if info is not None else 0
        if states is not None and worker < states.turn:
            # An empty chunk, so that the first samples come from the worker whose turn it is.
            yield RawChunk([], [], ChunkOrigin(worker, states.workers[worker], False))
        yield from self._chunks(worker, states.workers[worker] if states else None)
        while True:  # the intake stops asking when all workers have ended
            yield RawChunk([], [], ChunkOrigin(worker, self._last, True))

    def _chunks(self, worker: int, state: str | None) -> Iterator[RawChunk]:
        if state is not None and json.loads(state)["ended"]:
            # Not asked again: some datasets return to their beginning once they have ended.
            self._last = state
            return
        samples: list[Any] = []
        with _naming(worker, 0, samples):
            count, rows, iterator, owner = self._open(state)
        ended = False
        read = _read(iterator)
        while not ended:
            samples = []
            with _naming(worker, rows, samples):
                samples.extend(itertools.islice(read, self._chunk_size))
            names = [f"sample number {rows + i} of its worker" for i in range(len(samples))]
            drawn = None
            if isinstance(iterator, MixedPass):
                drawn = tuple(iterator.names)
                iterator.names.clear()
            samples = [self._preparation(*each) for each in zip(samples, names)]
            rows += len(samples)
            ended = len(samples) < self._chunk_size
            split: frozenset[int] = frozenset()
            if self._split is not None:
                pieces = [self._split(*each) for each in zip(samples, names)]
                row = np.arange(len(samples)).repeat([len(each) for each in pieces]).tolist()
                split = frozenset(row.index(i) for i, each in enumerate(pieces) if len(each) > 1)
                samples = [piece for each in pieces for piece in each]
                names = [names[i] for i in row]
                drawn = drawn and tuple(drawn[i] for i in row)
            count += len(samples)
            with _naming(worker, rows):
                of = "iterator" if owner is None or owner is iterator else "dataset"
                last = self._state(count, rows, ended, owner, of)
            self._last = last
            yield RawChunk(samples, names, ChunkOrigin(worker, last, ended, drawn), split)

    def _open(self, text: str | None) -> tuple[int, int, Any, Any]:
        """Samples yielded before, those read for them, the iterator, and the state's owner: it, the
        dataset or None."""
        saved: Any = json.loads(text) if text is not None else {"count": 0, "state": None}
        state, count = decode(saved["state"]), int(saved["count"])
        rows = int(saved.get("rows", count))
        dataset = self._share(self.dataset)
        if state is not None and saved["of"] == "dataset":
            dataset.load_state_dict(state)
        iterator = iter(dataset)
        if state is not None and saved["of"] == "iterator":
            iterator.load_state_dict(state)
        again = 0 if state is not None else rows
        if (dropped := sum(1 for _ in itertools.islice(_read(iterator), again))) < again:
            raise SampleError(
                f"the dataset yields {dropped} samples in a worker that had yielded {rows} when "
                "the state was saved; resume with the dataset that it was saved with"
            )
        owner = next((o for o in (iterator, dataset) if has_state(o)), None)
        return count, rows, iterator, owner

    def _state(self, count: int, rows: int, ended: bool, owner: Any, of: str) -> str | None:
        """
        Args:
            count, rows: samples yielded, and those read for them, where some are split.
            of: "iterator" if the state is to be loaded after ``iter()``. A dataset that is its own
                iterator may have none before.
        """
        if owner is None and not self._replays:
            return None
        state = owner.state_dict() if owner is not None else None
        try:
            state = encode(state)
        except TypeError as error:
            raise SampleError(
                f"state_dict() of {type(owner).__name__} cannot be saved ({error}); return "
                "numbers, text, bytes, tensors and arrays, in lists, tuples and dictionaries"
            ) from error
        cut = {"rows": rows} if rows != count else {}
        return json.dumps({"count": count, **cut, "ended": ended, "of": of, "state": state})


def _read(iterator: Iterator[Any]) -> Iterator[Any]:
    """What an iterator yields. It is not asked for an iterator: a dataset that is its own would
    return to its beginning."""
    with contextlib.suppress(StopIteration):
        while True:
            yield next(iterator)


@contextlib.contextmanager
def _naming(worker: int, count: int, more: Sequence[Any] = ()) -> Iterator[None]:
    """Turns exceptions into a `SampleError` that says how many samples the worker had read.

    Args:
        count, more: samples before, and those that are being read.
    """
    try:
        yield
    except EvenstepError:
        raise
    except BaseException as error:
        raise SampleError(
            f"worker {worker}, after {count + len(more)} samples: the dataset raised "
            f"{described(error)}; fix or exclude the sample"
        ) from error


class WorkerStateLog:
    """States from which the samples that are not planned yet can be read again.

    Thread-safe: the intake thread adds, the plan thread asks.
    """

    def __init__(self, workers: int, states: WorkerStates | None = None) -> None:
        self._lock = threading.Lock()
        self._base: list[str | None] = list(states.workers) if states else [None] * workers
        self._chunks: deque[tuple[int, ChunkOrigin]] = deque()  # place of the first sample, origin
        self._place = states.place if states else 0
        self._turn = states.turn if states else 0
        self._stateless = False

    def add(self, chunk: Chunk) -> int:
        """Records a chunk; returns the place of its first sample."""
        assert chunk.origin is not None
        with self._lock:
            begin = self._place
            if not chunk.size and not chunk.origin.ended:
                # From a worker that waits for its turn: see `ChunkedIterable.__iter__`.
                return begin
            self._place += chunk.size
            self._turn = (chunk.origin.worker + 1) % len(self._base)
            self._chunks.append((begin, chunk.origin))
            return begin

    def since(self, place: int) -> WorkerStates | None:
        """States from which all samples from `place` on are read again; None if the dataset has no
        state. Forgets earlier states, so later calls must not name an earlier place."""
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
