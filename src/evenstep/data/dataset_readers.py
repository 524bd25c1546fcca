"""Readers of datasets: map-style and iterable ones, of torch, of Hugging Face, or anything with
their methods.

A map-style dataset is read in blocks of `Source.block` samples, which are its shards.

An iterable dataset is one shard, in its own order, which must be the same in every reading. Any
position can be sought. If the dataset keeps its position (see `ResumableIterable`), a resume point
is recorded every 256 samples, and a seek starts from the last point before its target. Any other
dataset is read again from the beginning of the pass, up to the target. If the dataset has
``set_epoch``, it is called with the number of each pass. The dataset itself holds the position, so
it belongs to one reader: give a function that makes the dataset if the same source is opened more
than once.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from evenstep.data.reader import ShardedReader, SourceReader, fields_of
from evenstep.data.resumable import ResumableIterable, dataset_fingerprint, tell_epoch
from evenstep.data.shard_order import SampleLocation, ShardPart
from evenstep.data.source import Source
from evenstep.errors import ConfigurationError, InvariantError, SampleError


class MapReader(ShardedReader):
    """See the module docstring."""

    random_access = True

    def __init__(self, source: Source, seed: int, dataset: Any) -> None:
        super().__init__(source, seed)
        self._dataset = dataset
        self._set_order(np.diff([*range(0, len(dataset), source.block), len(dataset)]))

    def _shard(self, part: ShardPart) -> Iterator[Any]:
        for index in part.indices.tolist():
            try:
                sample = self._dataset[part.shard * self.source.block + index]
                yield fields_of(sample, self.source)
            except Exception as error:
                raise self._failed(error, part.shard, index) from error

    def _content(self) -> Mapping[str, Any]:
        return {
            "format": "map-style dataset",
            "samples": self.size,
            "block": self.source.block,
            "dataset": dataset_fingerprint(self._dataset, iterable=False),
        }


_EVERY = 256  # samples from one resume point to the next
_MOST_POINTS = 64  # beyond this, every other point is dropped


@dataclass(frozen=True)
class _Point:
    """A position from which reading can start."""

    position: int
    index: int
    """In its pass."""
    pass_number: int
    state: Mapping[str, Any] | None
    """`Reading.resume_point`; None for the beginning of the pass."""


class IterableReader(SourceReader):
    """See the module docstring."""

    def __init__(self, source: Source, seed: int, dataset: Any) -> None:
        super().__init__(source, seed)
        if source.shuffle:
            raise ConfigurationError(
                f"source {source.name!r} is iterable, and comes in its own order; leave "
                "shuffle=True out, and shuffle the dataset itself"
            )
        self._dataset = dataset
        self._iterable = ResumableIterable(dataset)
        self._points = [_Point(0, 0, 0, None)]  # ascending
        self._pass_begins = [0]  # position of each pass that was reached
        self._furthest = 0
        self._readings = 0  # started so far

    @property
    def size(self) -> int | None:
        """Known once a pass was read to its end, since ``len`` of such a dataset may be a guess."""
        return self._pass_begins[1] if len(self._pass_begins) > 1 else None

    def order(self, position: int) -> SampleLocation:
        """Reads as far as `position` if it was never reached."""
        if position >= self._furthest:
            for where, _ in self._from(max(self._furthest - 1, 0)):
                if self._furthest > position:
                    return where
        pass_number = bisect.bisect_right(self._pass_begins, position) - 1
        return SampleLocation(pass_number, 0, position - self._pass_begins[pass_number])

    def _from(self, position: int) -> Iterator[tuple[SampleLocation, Any]]:
        self._readings += 1
        number = self._readings
        start = next(p for p in reversed(self._points) if p.position <= position)
        while True:
            at, index = start.position, start.index
            tell_epoch(self._dataset, start.pass_number)
            reading = self._iterable.read(start.state)
            while True:
                self._check_newest(number)
                try:
                    if not (samples := reading.take(1)):
                        break
                    if at >= position:
                        self._furthest = max(self._furthest, at + 1)
                        fields = fields_of(samples[0], self.source)
                except Exception as error:
                    raise self._failed(error, 0, index) from error
                if at >= position:
                    yield SampleLocation(start.pass_number, 0, index), fields
                at, index = at + 1, index + 1
                if index % _EVERY == 0 and at > self._points[-1].position:
                    self._record(_Point(at, index, start.pass_number, reading.resume_point()))
            self._iterable.rewinder.finish(whole=start.state is None)
            if not index:
                raise SampleError(
                    f"source {self.source.name!r} yields nothing in pass {start.pass_number}, and "
                    "must yield its samples each time it is iterated"
                )
            if len(self._pass_begins) == start.pass_number + 1:
                self._pass_begins.append(at)
            start = _Point(at, 0, start.pass_number + 1, None)
            if at > self._points[-1].position:
                self._record(start)

    def _check_newest(self, number: int) -> None:
        """Refuses to continue a reading once another has started: the dataset has one position."""
        if number != self._readings:
            raise InvariantError(
                f"source {self.source.name!r} is read from two positions at once; use one "
                "iterator of a reader at a time"
            )

    def _record(self, point: _Point) -> None:
        if point.index and (point.state or {}).get("of") == "count":
            return  # to resume there is to read all that comes before
        self._points.append(point)
        if len(self._points) > _MOST_POINTS:
            self._points = [self._points[0], *self._points[1:-1:2], self._points[-1]]

    def _content(self) -> Mapping[str, Any]:
        return {
            "format": "iterable dataset",
            "dataset": dataset_fingerprint(self._dataset, iterable=True),
        }
