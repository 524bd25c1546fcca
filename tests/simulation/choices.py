"""The choices that make a history: drawn by a seed, or given, and written down in either case."""

from __future__ import annotations

import random
from collections.abc import Sequence
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
