"""Iterable datasets: one shard, in its own order.

Any position can be sought. The place of a dataset that can tell it (see `ResumableIterable`) is noted now
and then, and reading goes on from the last place before the position; any other dataset is read
again from the beginning of the pass, and what comes before the position is thrown away.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from evenstep.data.fingerprint import dataset_fingerprint
from evenstep.data.reader import SourceReader
from evenstep.data.resumable import ResumableIterable
from evenstep.data.shard_order import SampleLocation
from evenstep.errors import ConfigurationError, InvariantError, SampleError

if TYPE_CHECKING:
    from evenstep.data.source import Source

__all__ = ["StreamReader"]

_EVERY = 256  # samples from one noted place to the next
_NOTED = 64  # places that are kept; every other one goes where there are more


@dataclass(frozen=True)
class _Place:
    position: int
    index: int
    """In its pass."""
    pass_number: int
    state: Mapping[str, Any] | None
    """Of `Reading.place`; None for the beginning of the pass."""


class StreamReader(SourceReader):
    """See the module docstring."""

    def __init__(self, source: Source, seed: int, dataset: Any) -> None:
        super().__init__(source, seed)
        if source.shuffle:
            raise ConfigurationError(
                f"source {source.name!r} is iterable, and comes in its own order; shuffle the "
                "dataset itself and leave shuffle=True out, or give a map-style dataset"
            )
        self._dataset = dataset
        self._upstream = ResumableIterable(dataset)
        self._places = [_Place(0, 0, 0, None)]
        self._passes = [0]  # position at which each begins, as far as they were read
        self._furthest = 0
        self._reading = 0

    @property
    def size(self) -> int | None:
        """Known once a pass was read to its end, since a length that is told may be a guess."""
        return self._passes[1] if len(self._passes) > 1 else None

    def order(self, position: int) -> SampleLocation:
        """Reads on where the position was never reached."""
        if position >= self._furthest:
            for where, _ in self._from(max(self._furthest - 1, 0)):
                if self._furthest > position:
                    return where
        pass_number = bisect.bisect_right(self._passes, position) - 1
        return SampleLocation(pass_number, 0, position - self._passes[pass_number])

    def _from(self, position: int) -> Iterator[tuple[SampleLocation, Any]]:
        from evenstep.data.map_reader import fields_of

        self._reading += 1
        mine = self._reading  # a dataset keeps one place, so one reading at a time has it
        place = next(p for p in reversed(self._places) if p.position <= position)
        while True:
            at, index = place.position, place.index
            self._tell_pass(place.pass_number)
            reading = self._upstream.read(place.state)
            while True:
                if mine != self._reading:
                    raise InvariantError(
                        f"source {self.source.name!r} is read from two positions at once; use one "
                        "iterator of a reader at a time"
                    )
                samples = self._next(reading, index)
                if not samples:
                    break
                if at >= position:
                    where = SampleLocation(place.pass_number, 0, index)
                    self._furthest = max(self._furthest, at + 1)
                    yield where, self._fields(fields_of, samples[0], index)
                at, index = at + 1, index + 1
                if index % _EVERY == 0 and at > self._places[-1].position:
                    self._note(_Place(at, index, place.pass_number, reading.place()))
            self._upstream.finished(whole=place.state is None)
            if not index:
                raise SampleError(
                    f"source {self.source.name!r} yields nothing in pass {place.pass_number}; an "
                    "iterable dataset must yield its samples each time it is iterated"
                )
            if len(self._passes) == place.pass_number + 1:
                self._passes.append(at)
            place = _Place(at, 0, place.pass_number + 1, None)
            if at > self._places[-1].position:
                self._note(place)

    def _next(self, reading: Any, index: int) -> list[Any]:
        try:
            found: list[Any] = reading.take(1)
            return found
        except Exception as error:
            raise self._failed(error, 0, index) from error

    def _fields(self, fields_of: Any, sample: Any, index: int) -> Any:
        try:
            return fields_of(sample, self.source)
        except Exception as error:
            raise self._failed(error, 0, index) from error

    def _tell_pass(self, number: int) -> None:
        if callable(tell := getattr(self._dataset, "set_epoch", None)):
            tell(number)

    def _note(self, place: _Place) -> None:
        if place.index and (place.state or {}).get("of") == "count":
            return  # to go on from there is to read all that comes before
        self._places.append(place)
        if len(self._places) > _NOTED:
            self._places = [self._places[0], *self._places[1:-1:2], self._places[-1]]

    def state_dict(self) -> dict[str, Any]:
        places = [[p.position, p.index, p.pass_number, p.state] for p in self._places]
        return {
            **super().state_dict(),
            "places": places,
            "passes": list(self._passes),
            "furthest": self._furthest,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._places = [_Place(*place) for place in state["places"]]
        self._passes = list(state["passes"])
        self._furthest = int(state["furthest"])

    def _content(self) -> Mapping[str, Any]:
        return {
            "format": "iterable dataset",
            "dataset": dataset_fingerprint(self._dataset, iterable=True),
        }
