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

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from evenstep.errors import ConfigurationError
from evenstep.mixture.schedules import ByHand, check_names, check_weights
from evenstep.plan.value_checks import COUNT, check_schema

WEIGHTS, DROP, ADD, END, CANCEL = "weights", "drop", "add", "end", "cancel"
_SCHEMA = {"number": COUNT, "kind": str, "step": COUNT, "by": str, "time": float}


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


def begun_anew(changes: Iterable[Change]) -> tuple[Change, ...]:
    """Those that still hold for a job that is started from a state: that it ended is not one."""
    return tuple(change for change in uncancelled(tuple(changes)) if change.kind != END)


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
