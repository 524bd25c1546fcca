"""Makes a history that goes wrong smaller, as long as it goes wrong in the same way."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator

from histories import History, Played, play


def kind_of(played: Played) -> str | None:
    """What went wrong, without its numbers."""
    if played.violation is None:
        return None
    line = played.violation.splitlines()[0]
    return "".join(c for c in line if c.isalpha() or c == " ")[:40]


def shrink(history: History, played: Played, *, seconds: float = 60.0) -> History:
    """A history with fewer runs, faults, samples and choices that are not 0."""
    wanted, deadline = kind_of(played), time.monotonic() + seconds
    history = dataclasses.replace(history, given=played.choices)
    found = True
    while found and time.monotonic() < deadline:
        found = False
        for smaller in (*_plainer(history), *_duller(history)):
            if time.monotonic() > deadline:
                break
            tried = play(smaller)
            if kind_of(tried) == wanted:
                history, found = dataclasses.replace(smaller, given=tried.choices), True
                break
    return history


def _plainer(history: History) -> Iterator[History]:
    """Simpler settings, with the choices as they are, for whatever they then mean."""
    runs = history.runs
    for number in range(len(runs)):
        if len(runs) > 1:
            yield dataclasses.replace(history, runs=runs[:number] + runs[number + 1 :])
    for number, run in enumerate(runs):
        changes = [{"faults": run.faults[:i] + run.faults[i + 1 :]} for i in range(len(run.faults))]
        changes += [
            {"leaves": None},
            {"slow": False},
            {"heavy": False},
            {"threads": 1},
            {"persistent": False},
        ]
        changes += [{"ranks": run.ranks - 1}] if run.ranks > 1 else []
        changes += [{"workers": run.workers - 1}] if run.workers > 1 else []
        changes += [{"capacity": 1 << 16}, {"timeout": 0.0}, {"prefetch": 2}]
        for change in changes:
            changed = dataclasses.replace(run, **change)
            if changed != run:
                yield dataclasses.replace(
                    history, runs=(*runs[:number], changed, *runs[number + 1 :])
                )
    setup = history.setup
    for change in (
        {"epochs": 1},
        {"samples": 12},
        {"accumulate": 1},
        {"policy": "fixed"},
        {"shuffle": False},
        {"bad_sample": None},
        {"bad_batch": None},
        {"bad_order": None},
    ):
        changed = dataclasses.replace(setup, **change)
        if changed != setup:
            yield dataclasses.replace(history, setup=changed)


def _duller(history: History) -> Iterator[History]:
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
