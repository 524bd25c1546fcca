"""What all histories have: choices drawn by a seed, and what came of them."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

STYLES = ("even", "lazy", "lazier", "by priority")


class Choices:
    """Every choice is a number; 0 is always the dullest: nobody is interrupted, nothing is late."""

    def __init__(self, seed: int | None = None) -> None:
        """
        Args:
            seed: None makes all choices 0.
        """
        self.made: list[int] = []
        self._dull = seed is None
        self._random = random.Random(seed)
        style = self._random.choice(STYLES)
        self._stay = {"even": 0.0, "lazy": 0.7, "lazier": 0.95, "by priority": 1.0}[style]
        self._changes = 0.02 if style == "by priority" else 0.0

    def pick(self, count: int, *, dull: float = 0.0) -> int:
        """A number below `count`; where it is drawn, 0 with at least the probability `dull`."""
        if count < 2:
            return 0
        if self._dull or (dull and self._random.random() < dull):
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
        if not self._dull and self._changes:
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
    faults: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)

    def add(self, injected: Sequence[tuple[str, float]], reports: Any) -> None:
        """Counts a run."""
        self.faults.update(what.partition(" ")[0] for what, _ in injected)
        self.errors.update(type(r.error).__name__ for r in reports if r.error is not None)


@dataclass(frozen=True)
class History:
    setup: Any
    runs: tuple[Any, ...]
    seed: int

    def play(self) -> Played:
        """Plays it to the end of the job: after its runs comes one where nothing goes wrong."""
        raise NotImplementedError

    def describe(self, played: Played) -> str:
        return "\n".join(
            [
                f"seed {self.seed}: {self.setup}",
                *(f"  {run}" for run in self.runs),
                f"{sum(map(bool, played.choices))} of {len(played.choices)} choices are not 0",
                str(played.violation),
            ]
        )
