"""Plays histories: a few, those that find a deliberate fault, or for as long as one likes."""

from __future__ import annotations

import itertools
import os
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

from histories import History, Played

from mutation import Mutation

SOAK_SECONDS = float(os.environ.get("EVENSTEP_SIMULATION_SECONDS", "300"))
_FIRST = int(os.environ.get("EVENSTEP_SIMULATION_SEED", "100000"))


def check(history: History) -> Played:
    played = history.play()
    if played.violation is not None:
        raise AssertionError(history.describe(played))
    return played


def check_all(histories: Iterable[History], *what: str) -> None:
    """None may go wrong, and what may happen happens in them: faults and errors of these names."""
    happened: set[str] = set()
    for history in histories:
        played = check(history)
        happened |= {*+played.faults, *played.errors}
    assert happened.issuperset(what)


def check_same(history: History) -> None:
    """One seed is one history."""
    assert history.play() == history.play()


def check_found(mutation: Mutation, history_of: Callable[[int], History], reference: Any) -> None:
    """One of the histories from where it was found before goes wrong."""
    seeds = range(mutation.near, mutation.near + 200)
    with mutation.applied():
        reference.cache_clear()
        try:
            found = next((n for n in seeds if history_of(n).play().violation), None)
        finally:
            reference.cache_clear()
    print(f"{mutation.name}: seed {found}", file=sys.stderr)
    assert found is not None


def run_for_long(history_of: Callable[[int], History]) -> None:
    end = time.monotonic() + SOAK_SECONDS
    for seed in itertools.count(_FIRST):
        if time.monotonic() > end:
            break
        check(history_of(seed))
    print(f"{seed - _FIRST} histories, from seed {_FIRST} on", file=sys.stderr)
