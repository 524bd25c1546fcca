"""`Change`: what somebody changes in a running job by hand, from a step on.

    kind      value                              from its step on
    weights   by source; None: the job's own     the mixture draws by these weights
    drop      a source                           nothing more is drawn of it
    add       a source that was dropped          it is drawn again
    end       None                               the job ends, as at the end of its mixture
    cancel    None                               changes of the same step are taken back

Changes are part of the planner's state. So a planner that restarts, a resume and a replay make the
same steps.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from evenstep.errors import ConfigurationError
from evenstep.mixture.schedules import ByHand, check_names, check_weights
from evenstep.plan.value_checks import COUNT, check_schema

WEIGHTS, DROP, ADD, END, CANCEL = "weights", "drop", "add", "end", "cancel"
_SCHEMA = {"number": COUNT, "kind": str, "step": COUNT, "by": str, "time": float}


@dataclass(frozen=True, kw_only=True)
class Change:
    """See the module docstring. A second one of the same `by` and `time` is the same."""

    number: int = -1
    """Of the changes of a job, in the order in which they were made; -1 if it is asked for."""
    kind: str
    step: int = -1
    """-1 is the first step that is neither handed out nor planned, until the change is made."""
    value: Any = None
    by: str
    """Who made it, such as "ana@login-1"."""
    time: float
    """When, in seconds since 1970."""

    def __str__(self) -> str:
        what = f"{self.kind} {self.value}" if self.value is not None else self.kind
        return f"{what}, from step {self.step} on, by {self.by}"

    def to_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return asdict(self)

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> Change:
        """
        Raises:
            ConfigurationError, TypeError: it is damaged.
        """
        check_schema({name: saved[name] for name in _SCHEMA}, _SCHEMA, "changes")
        return cls(**saved)


class Changes:
    """The changes of a job, as its planner takes and follows them."""

    def __init__(self) -> None:
        self.made: tuple[Change, ...] = ()
        """In order."""
        self.token = secrets.token_hex(8)
        """Another in each planner; see `Planner.begin_change`."""

    def lasting(self) -> list[Change]:
        """Those that were not taken back, by step."""
        return uncancelled(self.made)

    def known(self, asked: Change) -> Change | None:
        """The change, if it was asked for before."""
        same = (each for each in self.made if (each.by, each.time) == (asked.by, asked.time))
        return next(same, None)

    def next(self, asked: Change, sources: Sequence[str], first: int) -> Change:
        """The change that is asked for, checked.

        Args:
            sources: names of the job's.
            first: the first step that can still be changed.

        Raises:
            ConfigurationError: it cannot be made.
        """
        number = max((each.number for each in self.made), default=-1) + 1
        step, kind = first if asked.step < 0 else asked.step, asked.kind
        if step < first:
            raise ConfigurationError(
                f"at_step={step}, but steps up to {first - 1} are planned, or on their way to "
                f"trainers; choose step {first} or a later one"
            )
        pending = [each for each in self.lasting() if each.step == step]
        if kind == CANCEL and not pending:
            raise ConfigurationError(
                f"no change is to come at step {step}; `evenstep service status` lists all"
            )
        for other in pending:
            if other.kind == kind and kind in (WEIGHTS, END):
                raise ConfigurationError(
                    f"step {step} is changed already: {other}; choose a later step, or cancel "
                    "that change first"
                )
        dropped = in_effect(self.made, step)[0].dropped
        if kind == WEIGHTS and asked.value is not None:
            weights = check_weights(asked.value, "the new weights")
            check_names(weights, sources, "the new weights")
            if gone := [name for name in dropped if weights.get(name)]:
                raise ConfigurationError(
                    f"the new weights name {gone[0]!r}, which was dropped; add that source again "
                    "first"
                )
        elif kind in (DROP, ADD):
            check_names([asked.value], sources, f"sources to {kind}")
            if (asked.value in dropped) == (kind == DROP):
                state = "is dropped already" if kind == DROP else "is not dropped"
                raise ConfigurationError(f"source {asked.value!r} {state}")
        return replace(asked, number=number, step=step)

    def add(self, *changes: Change) -> None:
        """Each counts once."""
        self.made = merged_changes(self.made, changes)

    def begin_anew(self) -> None:
        """Keeps those that still hold for a job that is started from a state: that it ended is not
        one."""
        self.made = tuple(change for change in self.lasting() if change.kind != END)

    def told(
        self, change: Change, weights: Callable[[int, ByHand], Mapping[str, float]]
    ) -> dict[str, Any]:
        """JSON-able: the change, and the weights `before` and `after` at its step.

        Args:
            weights: of a step, by what was changed by hand.
        """
        earlier = [each for each in self.made if each.number < change.number]
        at = {
            name: dict(weights(change.step, in_effect(changes, change.step)[0]))
            for name, changes in {"before": earlier, "after": [*earlier, change]}.items()
        }
        return {**change.to_dict(), **at}


def in_effect(changes: Sequence[Change], step: int) -> tuple[ByHand, bool]:
    """What changes come to in one step, and whether the job ends there."""
    weights, dropped, ends = None, frozenset[str](), False
    for change in uncancelled(changes):
        if change.step > step:
            continue
        if change.kind == WEIGHTS:
            weights = change.value
        elif change.kind == DROP:
            dropped |= {change.value}
        elif change.kind == ADD:
            dropped -= {change.value}
        else:
            ends = True
    return ByHand(weights, dropped), ends


def uncancelled(changes: Sequence[Change]) -> list[Change]:
    """Those that were not taken back, by step."""
    kept: list[Change] = []
    for change in changes:
        if change.kind == CANCEL:
            kept = [each for each in kept if each.step != change.step]
        else:
            kept.append(change)
    return sorted(kept, key=lambda change: (change.step, change.number))


def merged_changes(*given: Iterable[Change]) -> tuple[Change, ...]:
    """All changes, each once, in the order in which they were made."""
    found = {change.number: change for changes in given for change in changes}
    return tuple(found[number] for number in sorted(found))
