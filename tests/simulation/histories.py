"""What all histories have: choices drawn by a seed or given, a text from which one plays again, and
smaller ones that go wrong in the same way."""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import pickle
import random
import time
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

STYLES = ("even", "lazy", "lazier", "by priority")


class Choices:
    """Every choice is a number; 0 is always the dullest: nobody is interrupted, nothing is late."""

    def __init__(self, seed: int | None = None, given: Sequence[int] | None = None) -> None:
        """
        Args:
            given: the choices; from its end on all are 0.
        """
        self.made: list[int] = []
        self._given = given
        self._random = random.Random(seed)
        style = self._random.choice(STYLES)
        self._stay = {"even": 0.0, "lazy": 0.7, "lazier": 0.95, "by priority": 1.0}[style]
        self._changes = 0.02 if style == "by priority" else 0.0

    def pick(self, count: int, *, dull: float = 0.0) -> int:
        """A number below `count`; where it is drawn, 0 with at least the probability `dull`."""
        if count < 2:
            return 0
        if self._given is not None:
            at = len(self.made)
            choice = min(self._given[at], count - 1) if at < len(self._given) else 0
        elif dull and self._random.random() < dull:
            choice = 0
        else:
            choice = int(self._random.random() * count)
        self.made.append(choice)
        return choice

    def next_fiber(self, me: Any, runnable: list[Any]) -> Any:
        """Who of those that can run is next; choice 0 is `me`."""
        count = len(runnable)
        if count == 1:
            return runnable[0]
        first = runnable.index(me) if me in runnable else 0
        if self._given is None and self._changes:
            if me is not None and self._random.random() < self._changes:
                me.priority = self._random.random() - 1
            best = max(range(count), key=lambda i: runnable[i].priority)
            choice = (best - first) % count
            self.made.append(choice)
        else:
            choice = self.pick(count, dull=self._stay if runnable[first] is me else 0.0)
        return runnable[(first + choice) % count]

    def priority(self) -> float:
        return self._random.random()


@dataclass
class Played:
    """What came of a history."""

    violation: str | None = None
    choices: tuple[int, ...] = ()
    scheduled: int = 0
    """Steps of the scheduler."""
    trained: int = 0
    """Training steps of all ranks."""
    faults: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)

    def add(self, world: Any, injected: Sequence[tuple[str, float]], reports: Any) -> None:
        """Counts a run."""
        self.scheduled += world.steps
        self.trained += sum(len(report.steps) for report in reports)
        self.faults.update(what.partition(" ")[0] for what, _ in injected)
        self.errors.update(type(r.error).__name__ for r in reports if r.error is not None)

    @property
    def kind(self) -> str | None:
        """What went wrong, without its numbers."""
        if self.violation is None:
            return None
        line = self.violation.splitlines()[0]
        return "".join(c for c in line if c.isalpha() or c == " ")[:40]


@dataclass(frozen=True)
class History:
    setup: Any
    runs: tuple[Any, ...]
    seed: int | None = None
    given: tuple[int, ...] | None = None
    """The choices; drawn by the seed when None."""

    def choices(self) -> Choices:
        return Choices(self.seed, self.given)

    def to_text(self) -> str:
        return base64.b85encode(zlib.compress(pickle.dumps(self), 9)).decode()

    @staticmethod
    def from_text(text: str) -> Any:
        return pickle.loads(zlib.decompress(base64.b85decode(text)))

    def play(self) -> Played:
        """Plays it to the end of the job: after its runs comes one where nothing goes wrong."""
        raise NotImplementedError

    def smaller(self, played: Played, *, seconds: float = 60.0) -> Any:
        """One that goes wrong as this one did, with fewer runs, faults and choices that are not 0,
        and with plainer settings.

        Args:
            seconds: of processor time, after which it is as small as it is by then.
        """
        deadline = time.process_time() + seconds
        history, found = dataclasses.replace(self, given=played.choices), True
        while found and time.process_time() < deadline:
            found = False
            for smaller in (*history._plainer(), *history._duller()):
                if time.process_time() > deadline:
                    break
                tried = Played()
                with contextlib.suppress(Exception):  # settings of which no job can be made
                    tried = smaller.play()
                if tried.kind == played.kind:
                    history, found = dataclasses.replace(smaller, given=tried.choices), True
                    break
        return history

    def _plainer(self) -> Iterator[Any]:
        """Simpler settings, with the choices as they are, for whatever they then mean."""
        runs, replace = self.runs, dataclasses.replace
        for number in range(len(runs) if len(runs) > 1 else 0):
            yield replace(self, runs=runs[:number] + runs[number + 1 :])
        for number, run in enumerate(runs):
            for plainer in _plainer(run):
                yield replace(self, runs=(*runs[:number], plainer, *runs[number + 1 :]))
        for plainer in _plainer(self.setup):
            yield replace(self, setup=plainer)

    def _duller(self) -> Iterator[Any]:
        """Fewer choices that are not 0: all after some point, then blocks of them."""
        given = self.given or ()
        last = max((i for i, choice in enumerate(given) if choice), default=-1) + 1
        for kept in (0, last // 4, last // 2, 3 * last // 4, last - 1):
            if 0 <= kept < len(given):
                yield dataclasses.replace(self, given=given[:kept])
        size = last // 2
        while size:
            for start in range(0, last, size):
                if any(given[start : start + size]):
                    zeros = (0,) * min(size, last - start)
                    yield dataclasses.replace(
                        self, given=given[:start] + zeros + given[start + size : last]
                    )
            size //= 2

    def describe(self, played: Played) -> str:
        return "\n".join(
            [
                f"seed {self.seed}: {self.setup}",
                *(f"  {run}" for run in self.runs),
                f"{sum(map(bool, played.choices))} of {len(played.choices)} choices are not 0",
                str(played.violation),
                f"play it again: python -m replay {self.to_text()!r}",
            ]
        )


def _plainer(settings: Any) -> Iterator[Any]:
    """The settings with one of them as it is by default, or without one of its entries."""
    for each in dataclasses.fields(settings):
        value = getattr(settings, each.name)
        others = [] if value == each.default else [each.default]
        if isinstance(value, tuple):  # never a longer one, or it could go on for ever
            others = [other for other in others if len(other) < len(value)]
            others += [value[:i] + value[i + 1 :] for i in range(len(value))]
        for other in others:
            yield dataclasses.replace(settings, **{each.name: other})
