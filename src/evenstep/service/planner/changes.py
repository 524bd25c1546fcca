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
from dataclasses import asdict, dataclass
from typing import Any

from evenstep.errors import ConfigurationError
from evenstep.mixture.schedules import ByHand, check_names, check_weights
from evenstep.plan.value_checks import COUNT, check_schema

WEIGHTS, DROP, ADD, END, CANCEL = "weights", "drop", "add", "end", "cancel"
_SCHEMA = {"number": COUNT, "kind": str, "step": COUNT, "by": str, "time": float}


@dataclass(frozen=True, kw_only=True)
class AskedChange:
    """A change as somebody asks for it. A second one of the same `by` and `time` is the same."""

    kind: str
    value: Any = None
    by: str
    time: float
    at_step: int | None = None
    """None is the first step that is neither handed out nor planned."""
    dry_run: bool = False
    """Whether only what would change is asked for."""


@dataclass(frozen=True, kw_only=True)
class Change:
    """See the module docstring."""

    number: int
    """Of the changes of a job, in the order in which they were made."""
    kind: str
    step: int
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


@dataclass(frozen=True)
class InEffect:
    """What the changes of a job come to in one step."""

    by_hand: ByHand
    ends: bool

    @classmethod
    def at(cls, changes: Sequence[Change], step: int) -> InEffect:
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
        return cls(ByHand(weights, dropped), ends)


class Changes:
    """The changes of a job, as its planner takes and follows them."""

    def __init__(self) -> None:
        self.made: tuple[Change, ...] = ()
        """In order."""
        self.token = secrets.token_hex(8)
        """Another in each planner; see `Planner.begin_change`."""

    def at(self, step: int) -> InEffect:
        """What counts in a step."""
        return InEffect.at(self.made, step)

    def lasting(self) -> list[Change]:
        """Those that were not taken back, by step."""
        return uncancelled(self.made)

    def known(self, asked: AskedChange) -> Change | None:
        """The change, if it was asked for before."""
        same = (each for each in self.made if (each.by, each.time) == (asked.by, asked.time))
        return next(same, None)

    def next(self, asked: AskedChange, sources: Sequence[str], first: int) -> Change:
        """The change that is asked for, checked.

        Args:
            sources, first: see `check_change`.

        Raises:
            ConfigurationError: it cannot be made.
        """
        change = Change(
            number=max((each.number for each in self.made), default=-1) + 1,
            kind=asked.kind,
            step=first if asked.at_step is None else asked.at_step,
            value=asked.value,
            by=asked.by,
            time=asked.time,
        )
        check_change(change, self.made, sources, first)
        return change

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
        found = {"before": earlier, "after": [*earlier, change]}
        at = {
            name: dict(weights(change.step, InEffect.at(changes, change.step).by_hand))
            for name, changes in found.items()
        }
        return {**change.to_dict(), **at}


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


def check_change(
    change: Change, changes: Sequence[Change], sources: Sequence[str], first: int
) -> None:
    """
    Args:
        changes: made before it.
        sources: names of the job's.
        first: the first step that can still be changed.

    Raises:
        ConfigurationError: the change cannot be made.
    """
    if change.step < first:
        raise ConfigurationError(
            f"at_step={change.step}, but steps up to {first - 1} are planned, or on their way to "
            f"trainers; choose step {first} or a later one"
        )
    pending = [each for each in uncancelled(changes) if each.step == change.step]
    if change.kind == CANCEL:
        if not pending:
            raise ConfigurationError(
                f"no change is to come at step {change.step}; `evenstep service status` lists all"
            )
        return
    for other in pending:
        if other.kind == change.kind and change.kind in (WEIGHTS, END):
            raise ConfigurationError(
                f"step {change.step} is changed already: {other}; choose a later step, or cancel "
                "that change first"
            )
    dropped = InEffect.at(changes, change.step).by_hand.dropped
    if change.kind == WEIGHTS and change.value is not None:
        weights = check_weights(change.value, "the new weights")
        check_names(weights, sources, "the new weights")
        gone = [name for name, weight in weights.items() if weight and name in dropped]
        if gone:
            raise ConfigurationError(
                f"the new weights name {gone[0]!r}, which was dropped; add that source again first"
            )
    elif change.kind in (DROP, ADD):
        check_names([change.value], sources, f"sources to {change.kind}")
        if (change.value in dropped) == (change.kind == DROP):
            state = "is dropped already" if change.kind == DROP else "is not dropped"
            raise ConfigurationError(f"source {change.value!r} {state}")
