"""`Signals`: what trainers report, used in an order that does not depend on timing.

When a client takes step s, it requests step s + prefetch + 1. If ranks wait for each other in each
step, every rank has taken step s - 1 by then. If it reports on each step before it takes the next,
it has reported on all steps before s - 1, but perhaps not yet on s - 1. So signals of step s count
from the plan of step s + prefetch + 3 on. A signal that arrives too late for that plan counts from
the next plan on. Plans record the signals that they used.

A restarted rank reports on the same steps again. Reports that a plan has used do not change.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from evenstep.errors import ConfigurationError


class Signals:
    """Reports that no plan has used yet."""

    def __init__(self, prefetch: int, kept: int) -> None:
        """
        Args:
            prefetch: steps that clients request ahead.
            kept: last plans that may be made again; see `recall`.
        """
        self._lag = prefetch + 3
        self._remembered = kept + self._lag
        self._waiting: dict[tuple[int, int], dict[str, Any]] = {}
        self._last: dict[int, tuple[int, dict[str, Any]]] = {}
        """By rank, the step and signals that it reported last."""
        self._used: dict[int, dict[int, set[str]]] = {}
        """By rank and step, the names of signals that a plan has used, of the last steps."""

    def add(self, step: int, rank: int, signals: Mapping[str, Any]) -> None:
        """Adds a report. A second one of the same step and rank updates the first."""
        self._waiting.setdefault((step, rank), {}).update(signals)
        self._last[rank] = step, dict(signals)

    def repeats(self, step: int, rank: int, signals: Mapping[str, Any]) -> bool:
        """Whether a report counts already: it is the rank's last one, sent again because no answer
        arrived, or a plan has used the rank's report on the same or a later step."""
        used = self._used.get(rank, {})
        last = max(used, default=-1)
        is_used = step < last or (step == last and used[last].issuperset(signals))
        return is_used or self._last.get(rank) == (step, signals)

    def note(self, step: int, rank: int, signals: Mapping[str, Any]) -> None:
        """Remembers a report from before the state that was loaded, for `repeats`."""
        self._last[rank] = step, dict(signals)
        if (step, rank) not in self._waiting:
            self._note_used(step, rank, signals)

    def _note_used(self, step: int, rank: int, signals: Iterable[str]) -> None:
        used = self._used.setdefault(rank, {})
        used.setdefault(step, set()).update(signals)
        if len(used) > self._remembered:
            del used[min(used)]

    def recall(self, before: Signals, step: int) -> None:
        """Remembers, for `repeats`, what was reported before a state of a step was loaded.

        Args:
            before: the reports until then. Those on this and later steps do not count any more.
        """
        for rank, used in before._used.items():
            for of_step, names in sorted(used.items()):
                if of_step < step and (of_step, rank) not in self._waiting:
                    self._note_used(of_step, rank, names)
        self._last = {rank: last for rank, last in before._last.items() if last[0] < step}

    def take(self, step: int) -> dict[str, Any]:
        """Removes and returns the signals that count from the plan of this step on: the mean over
        the ranks that reported a signal in a step, and the last of several steps."""
        ready = sorted(key for key in self._waiting if key[0] + self._lag <= step)
        by_step: dict[int, dict[str, list[Any]]] = {}
        for key in ready:
            signals = self._waiting.pop(key)
            self._note_used(*key, signals)
            for name, value in signals.items():
                by_step.setdefault(key[0], {}).setdefault(name, []).append(value)
        taken: dict[str, Any] = {}
        for found in by_step.values():
            taken.update({name: _mean(values) for name, values in found.items()})
        return taken

    def to_list(self) -> list[list[Any]]:
        """JSON-able."""
        return [[step, rank, dict(s)] for (step, rank), s in sorted(self._waiting.items())]

    def load(self, saved: Sequence[Sequence[Any]]) -> None:
        self._waiting = {(step, rank): dict(signals) for step, rank, signals in saved}


def plain_signals(step: int, rank: int, signals: Mapping[str, Any]) -> dict[str, Any]:
    """What a rank reports, as it would be read back from JSON.

    Raises:
        ConfigurationError: a signal cannot be written as JSON, or a number is not finite.
    """
    try:
        plain: dict[str, Any] = json.loads(json.dumps(dict(signals), default=lambda v: v.item()))
    except (TypeError, ValueError, AttributeError) as error:
        raise ConfigurationError(
            f"rank {rank} reports {signals!r} in step {step}, which is not made of numbers, "
            f"text, lists and mappings ({error}); report plain numbers, such as loss.item()"
        ) from error
    for name, value in plain.items():
        for number in value.values() if isinstance(value, Mapping) else [value]:
            if isinstance(number, float) and not math.isfinite(number):
                raise ConfigurationError(
                    f"rank {rank} reports {name}={value!r} in step {step}; report finite "
                    "numbers, and leave out what was not measured"
                )
    return plain


def merged(reports: Iterable[Sequence[Any]]) -> list[list[Any]]:
    """Reports as `Signals.to_list` gives them; later ones of the same step and rank update earlier
    ones."""
    found: dict[tuple[int, int], dict[str, Any]] = {}
    for step, rank, signals in reports:
        found.setdefault((step, rank), {}).update(signals)
    return [[*key, found[key]] for key in sorted(found)]


def _mean(values: Sequence[Any]) -> Any:
    if all(isinstance(value, Mapping) for value in values):
        names = dict.fromkeys(name for value in values for name in value)
        return {name: _mean([v[name] for v in values if name in v]) for name in names}
    if all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values):
        return math.fsum(values) / len(values)
    return values[-1]
