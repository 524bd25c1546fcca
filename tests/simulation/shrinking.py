"""Makes a history that goes wrong smaller, as long as it goes wrong in the same way."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from typing import Any

from histories import Played


def kind_of(played: Played) -> str | None:
    """What went wrong, without its numbers."""
    if played.violation is None:
        return None
    line = played.violation.splitlines()[0]
    return "".join(c for c in line if c.isalpha() or c == " ")[:40]


def shrink(history: Any, played: Played, *, seconds: float = 60.0) -> Any:
    """A history with fewer runs, faults, samples and choices that are not 0."""
    wanted, deadline = kind_of(played), time.monotonic() + seconds
    history = dataclasses.replace(history, given=played.choices)
    found = True
    while found and time.monotonic() < deadline:
        found = False
        for smaller in (*history.plainer(), *_duller(history)):
            if time.monotonic() > deadline:
                break
            tried = smaller.play()
            if kind_of(tried) == wanted:
                history, found = dataclasses.replace(smaller, given=tried.choices), True
                break
    return history


def _duller(history: Any) -> Iterator[Any]:
    """Fewer choices that are not 0: all after some point, then blocks of them."""
    given = history.given or ()
    last = max((i for i, choice in enumerate(given) if choice), default=-1) + 1
    for kept in (0, last // 4, last // 2, 3 * last // 4, last - 1):
        if 0 <= kept < len(given):
            yield dataclasses.replace(history, given=given[:kept])
    size = last // 2
    while size:
        for start in range(0, last, size):
            if any(given[start : start + size]):
                zeros = (0,) * min(size, last - start)
                yield dataclasses.replace(
                    history, given=given[:start] + zeros + given[start + size : last]
                )
        size //= 2
