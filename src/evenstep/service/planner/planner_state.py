"""What the planner knows before a step, and how it is written to a checkpoint and read back;
`PlanLog`: the last plans, each with the state before it."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from evenstep.data.pickling import same_code
from evenstep.errors import ConfigurationError, MismatchError
from evenstep.mixture import Mixer
from evenstep.mixture.sample_table import SampleTable
from evenstep.mixture.state import MixtureState
from evenstep.plan.saved_state import headed, reading
from evenstep.plan.value_checks import COUNT, check_schema, require
from evenstep.service.job.job import Job
from evenstep.service.planner.changes import Change
from evenstep.service.planner.draws import TOO_LONG, Identities
from evenstep.service.planner.policy_steps import Windows
from evenstep.strategy import LoadingPlan

_SCHEMA = {
    "contents": {str: {str: str}},
    "columns": [str],
    "step": COUNT,
    "mixture": Mapping,
    "carried": Mapping,
    "bad": {str: [[COUNT]]},
    "signals": [list],
    "changes": [Mapping],
    "drawn": Mapping,
}
_FILES = "its files, their sizes or counts"
_TRANSFORM = "its transform"
_PARTS = {
    "content": "the content of its files",
    "columns": "its columns",
    "transform": _TRANSFORM,
    "shuffle": "its order",
    "seed": "its order",
}
"""What the fields of a source's fingerprint are about; all others are about `_FILES`."""


@dataclass(frozen=True, kw_only=True)
class PlannerState:
    """What the planner knows before a step. It is small and immutable, and is serialized only for a
    checkpoint."""

    step: int
    mixture: MixtureState
    windows: Windows
    """Samples that were drawn and not trained on: that found no room in an earlier step of a
    strategy, or that the windows of a policy hold."""
    bad: Identities
    """Samples that were passed over; see `BadSamples`."""
    signals: Sequence[Sequence[Any]]
    """Reports that no plan has used yet; see `Signals.to_list`."""
    changes: tuple[Change, ...] = ()
    """That were made by hand."""


Contents = Mapping[str, Mapping[str, str]]
"""By source, see `source_digests`."""


def state_to_dict(
    state: PlannerState, *, job: Job, contents: Contents, mixture: Mixer
) -> dict[str, Any]:
    """JSON-able."""
    return headed(
        "service",
        job=job.fingerprint,
        contents={name: dict(parts) for name, parts in contents.items()},
        columns=list(job.columns),
        step=state.step,
        mixture=mixture.state_dict(state.mixture),
        carried=state.windows.table.to_dict(),
        windows=state.windows.to_dict(job),
        bad={name: [list(where) for where in found] for name, found in state.bad.items()},
        signals=copy.deepcopy(state.signals),
        changes=[change.to_dict() for change in state.changes],
        drawn=dict(zip(job.names, state.mixture.counts.tolist())),
    )


def check_state(state: Any) -> None:
    """
    Raises:
        MismatchError: it is none of a service, of another release, or damaged.
    """
    with reading(state, "service", _SCHEMA):
        pass


def loaded_state(
    state: Mapping[str, Any], *, job: Job, contents: Contents, mixture: Mixer
) -> PlannerState:
    """Inverse of `state_to_dict`; loads the mixture too.

    Args:
        contents: empty if not known.

    Raises:
        MismatchError: the state is of another release, job or data, or damaged. A state has no
            digest: a number that was replaced by another possible one is not noticed.
    """
    with reading(state, "service", _SCHEMA):
        mixture.load_state_dict(state["mixture"])
        if job.policy is None and mixture.step != state["step"]:
            raise MismatchError(
                "the state was saved under a policy, which draws ahead of the steps that it plans, "
                "and a strategy draws in each step; resume with a policy"
            )
        _check_data(state, job=job, contents=contents)
        drawn = {name: source["samples"] for name, source in state["mixture"]["sources"].items()}
        require(drawn == state["drawn"], "drawn", state["drawn"])
        for step, rank, signals in state["signals"]:
            check_schema([step, rank], [COUNT], "signals")
            check_schema(signals, Mapping, "signals")
        return PlannerState(
            step=state["step"],
            mixture=mixture.state,
            windows=Windows.from_dict(_carried_of(state, job.names), state.get("windows"), job),
            bad=_bad_of(state),
            signals=state["signals"],
            changes=tuple(map(Change.from_dict, state["changes"])),
        )


def _check_data(state: Mapping[str, Any], *, job: Job, contents: Contents) -> None:
    """
    Args:
        contents: empty if not known.

    Raises:
        MismatchError: the state is of other data, or of other modalities than the job has.
    """
    for name, saved in state["contents"].items() if contents else ():
        now = contents.get(name, {})
        changed = [part for part in now if saved.get(part) != now[part]]
        if _TRANSFORM in changed and same_code(saved.get(_TRANSFORM, ""), now[_TRANSFORM]):
            changed.remove(_TRANSFORM)
        if changed or not now:
            raise MismatchError(
                f"source {name!r} has changed since the state was saved: "
                f"{_difference(changed, saved, now)}, so positions may name other samples; restore "
                "the source as it was, or start without a state"
            )
    if list(state["columns"]) != list(job.columns):
        raise MismatchError(
            f"the state was saved with lengths of {state['columns']}, and the job has "
            f"{list(job.columns)}; keep its modalities"
        )


def _difference(changed: Sequence[str], saved: Mapping[str, str], now: Mapping[str, str]) -> str:
    """What has changed in a source, and how to accept an edit of its transform."""
    if not now:
        return "the job does not have it"
    if list(changed) != [_TRANSFORM]:
        return ", ".join(changed)
    was = saved.get(_TRANSFORM)
    return (
        f"{_TRANSFORM} was {was} and is now {now[_TRANSFORM]} (if it still makes the same samples, "
        f"set its attribute fingerprint = {was!r})"
    )


def _carried_of(state: Mapping[str, Any], names: tuple[str, ...]) -> SampleTable:
    """The carried samples of a state, with sources numbered as in `names`.

    Raises:
        MismatchError: a sample is of a source that is not in `names`.
    """
    table = SampleTable.from_dict(state["carried"])
    unknown = [name for name in {table.sources[s] for s in table.source} if name not in names]
    if unknown:
        raise MismatchError(
            f"the state has carried samples of source {unknown[0]!r}, which the job does not have; "
            "keep the source, with weight 0 if no more of it is to be drawn"
        )
    saved = table.to_dict()
    numbers = [names.index(table.sources[number]) for number in saved["source"]]
    return SampleTable.from_dict({**saved, "sources": list(names), "source": numbers})


def _bad_of(state: Mapping[str, Any]) -> Identities:
    found = {name: tuple(map(tuple, each)) for name, each in state["bad"].items()}
    for name, each in found.items():
        source = name.removesuffix(TOO_LONG)
        passed_over = state["mixture"]["sources"].get(source, {}).get("bad", 0)
        pairs = len(set(each)) == len(each) and all(len(where) == 2 for where in each)
        require(pairs and len(each) <= passed_over, f"bad.{name}", each)
    return found


def source_digests(fingerprint: Mapping[str, Any]) -> dict[str, str]:
    """A short digest of the fields of a source's fingerprint, by what they are about; see
    `SourceLoader.describe`. A transform is named as in the fingerprint."""
    found: dict[str, dict[str, Any]] = {}
    for name, value in fingerprint.items():
        found.setdefault(_PARTS.get(name, _FILES), {})[name] = value
    texts = {part: json.dumps(own, sort_keys=True, default=repr) for part, own in found.items()}
    digests = {part: hashlib.sha256(t.encode()).hexdigest()[:8] for part, t in texts.items()}
    return {**digests, _TRANSFORM: str(fingerprint["transform"])}


class LoggedPlan(NamedTuple):
    """The plan of one step."""

    plan: LoadingPlan
    before: PlannerState
    """The state from which the step was planned."""


class PlanLog:
    """See the module docstring."""

    def __init__(self, kept: int) -> None:
        self._kept = kept
        self._plans: dict[int, LoggedPlan] = {}

    def add(self, logged: LoggedPlan) -> None:
        self._plans[logged.plan.step] = logged
        while len(self._plans) > self._kept:
            del self._plans[next(iter(self._plans))]

    def get(self, step: int) -> LoggedPlan | None:
        """The logged plan of a step, if it is kept."""
        return self._plans.get(step)

    def plan(self, step: int) -> LoadingPlan:
        """The plan of a step.

        Raises:
            ConfigurationError: it is not kept any more.
        """
        if step in self._plans:
            return self._plans[step].plan
        first = next(iter(self._plans), None)
        kept = "none is" if first is None else f"those from step {first} on are"
        raise ConfigurationError(
            f"the plan of step {step} is not kept, {kept}; raise plans_kept= of ServiceMemory"
        )

    def clear(self, begin: int = 0) -> None:
        """Forgets the plans of this step and all after it."""
        self._plans = {step: each for step, each in self._plans.items() if step < begin}
