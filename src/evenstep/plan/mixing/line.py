"""`Line`: the samples of one source that a step may draw, in the order in which they come.

First those that have waited and are admitted now, then those from the cursor on; what is too long
is passed over. Looking changes nothing: `taken` tells what is different after some were drawn.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from evenstep.errors import InvariantError, SampleError
from evenstep.plan.samples import Metadata, SampleTable

__all__ = ["Admission", "Line", "Taken"]

Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Admission:
    """What is drawn at all in a step."""

    tokens: Callable[[SampleTable], Int64Array]
    limit: int | None = None
    """Tokens of the longest sample; None is no limit."""
    max_waiting: int = 0
    """Samples that may be passed over, those that wait already among them."""


@dataclass(frozen=True, kw_only=True)
class Taken:
    """A source after some of its line was drawn."""

    samples: SampleTable
    cursor: int
    waiting: SampleTable
    over: bool
    """Nothing will come any more."""


@dataclass
class Line:
    source: int
    name: str
    provider: Metadata
    cursor: int
    """Position of the first sample that was never looked at."""
    waiting: SampleTable
    admission: Admission
    remaining: int | None
    """Samples from the cursor on, where it is known and the source does not begin again."""
    peeks: bool
    """Ask for one sample more than is wanted, to learn that the source ends where it does."""
    endless: bool
    """The source begins again where it ends."""
    _tables: list[SampleTable] = field(default_factory=list)  # from the cursor on, admitted or not
    _lengths: list[Int64Array] = field(default_factory=list)  # of those admitted, in order
    _seen: int = 0
    _admitted: int = 0
    _over: bool = False

    def __post_init__(self) -> None:
        self._old = np.zeros(0, np.bool_)
        if len(self.waiting):
            tokens = self.admission.tokens(self.waiting)
            self._old = self._fits(tokens)
            self._lengths = [tokens[self._old]]
            self._admitted = len(self._lengths[0])
        self._over = self.remaining == 0

    def reach(self, count: int) -> int:
        """Looks so far ahead that there are `count` samples, if there are so many.

        Returns:
            How many there are: less than `count` only where there will be no more in this step.

        Raises:
            SampleError: more than `max_waiting` samples are too long.
        """
        while self._admitted < count + self.peeks and not self._over:
            self._look(count + self.peeks - self._admitted)
        return self._admitted

    def _look(self, count: int) -> None:
        if self.admission.limit is not None:
            count += count // 2 + 8  # some will be too long
        if self.remaining is not None:
            count = min(count, self.remaining - self._seen)
        table = self.provider.ahead(self.source, self.cursor + self._seen, count)
        if len(table) > count or (
            len(table)
            and (
                table.position[0] != self.cursor + self._seen
                or table.position[-1] != self.cursor + self._seen + len(table) - 1
            )
        ):
            raise InvariantError(
                f"asked for {count} samples of source {self.name!r} from position "
                f"{self.cursor + self._seen}, and got {len(table)}, of positions "
                f"{table.position[:1]} to {table.position[-1:]}"
            )
        self._over = len(table) < count
        if self._over and self.endless:
            raise SampleError(
                f"source {self.name!r} has ended at position "
                f"{self.cursor + self._seen + len(table):,}, and the stop rule reads sources again "
                "and again; make it go on with its next pass, or choose stop='first_exhausted' or "
                "'all_exhausted'"
            )
        self._seen += len(table)
        if self.remaining is not None:
            self._over |= self._seen == self.remaining
        if len(table):
            tokens = self.admission.tokens(table)
            admitted = tokens if self.admission.limit is None else tokens[self._fits(tokens)]
            self._tables.append(table)
            self._lengths.append(admitted)
            self._admitted += len(admitted)
        passed = len(self.waiting) + self._seen - self._admitted
        if self.admission.limit is not None and passed > self.admission.max_waiting:
            raise SampleError(
                f"{passed:,} samples of source {self.name!r} are longer than the "
                f"{self.admission.limit:,} tokens that the curriculum admits, and "
                f"max_waiting={self.admission.max_waiting:,}; begin with a higher limit, leave "
                "long samples out of the source, or raise max_waiting"
            )

    def _fits(self, tokens: Int64Array) -> npt.NDArray[np.bool_]:
        if self.admission.limit is None:
            return np.ones(len(tokens), np.bool_)
        fits: npt.NDArray[np.bool_] = tokens <= self.admission.limit
        return fits

    @property
    def stuck(self) -> bool:
        """Whether samples are left that no step with this limit draws."""
        return self._over and len(self.waiting) + self._seen > self._admitted

    def over_after(self, count: int) -> bool:
        """Whether nothing is left once `count` were drawn."""
        return self._over and not self.stuck and count >= self._admitted

    def lengths(self, count: int) -> Int64Array:
        """[count] tokens of the first samples, which were reached."""
        if len(self._lengths) > 1:
            self._lengths = [np.concatenate(self._lengths)]
        return self._lengths[0][:count] if self._lengths else np.empty(0, np.int64)

    def taken(self, count: int) -> Taken:
        """After the first `count`, which were reached, are drawn."""
        if self.admission.limit is None and not len(self.waiting):
            self._tables = [_joined(self._tables)] if self._tables else [self.waiting]
            whole = self._tables[0]
            return Taken(
                samples=whole if count == len(whole) else whole[:count],
                cursor=self.cursor + count,
                waiting=self.waiting,
                over=self.over_after(count),
            )
        old = min(count, int(np.count_nonzero(self._old)))
        chosen = np.flatnonzero(self._old)[:old]
        left = np.ones(len(self.waiting), np.bool_)
        left[chosen] = False
        samples, waiting = [self.waiting[chosen]], [self.waiting[left]]
        cursor, wanted = self.cursor, count - old
        for table in self._tables:
            if not wanted:
                break
            fits = self._fits(self.admission.tokens(table))
            places = np.flatnonzero(fits)[:wanted]
            if not len(places):
                waiting.append(table)
                cursor += len(table)
                continue
            wanted -= len(places)
            end = int(places[-1]) + 1 if not wanted else len(table)
            samples.append(table[places])
            waiting.append(table[np.flatnonzero(~fits[:end])])
            cursor += end
        return Taken(
            samples=_joined(samples),
            cursor=cursor,
            waiting=_joined(waiting),
            over=self.over_after(count),
        )


def _joined(tables: list[SampleTable]) -> SampleTable:
    return SampleTable.concatenate([t for t in tables if len(t)] or tables[:1])
