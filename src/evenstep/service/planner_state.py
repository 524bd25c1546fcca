"""What the planner knows before a step, and how it is written to a checkpoint and read back."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evenstep.errors import MismatchError, parsing
from evenstep.plan.schema import COUNT, check_schema, require
from evenstep.service.job import Job
from evenstep.strategy.mixture import Mixture
from evenstep.strategy.mixture.state import MixtureState
from evenstep.strategy.sample_table import SampleTable

_VERSION = 1
_SCHEMA = {
    "contents": {str: str},
    "columns": [str],
    "step": COUNT,
    "mixture": Mapping,
    "carried": Mapping,
    "signals": [list],
    "drawn": Mapping,
}


@dataclass(frozen=True, kw_only=True)
class PlannerState:
    """What the planner knows before a step. It is small and never changes, and is written out only
    when a checkpoint asks for it."""

    step: int
    mixture: MixtureState
    carried: SampleTable
    """Samples that found no room in an earlier step."""
    signals: Sequence[Sequence[Any]]
    """Reports that no plan has used yet; see `Signals.to_list`."""


def state_to_dict(
    state: PlannerState, *, job: Job, contents: Mapping[str, str], mixture: Mixture
) -> dict[str, Any]:
    """JSON-able.

    Args:
        contents: by source, see `content_digest`.
    """
    return {
        "version": _VERSION,
        "job": job.fingerprint,
        "contents": dict(contents),
        "columns": list(job.columns),
        "step": state.step,
        "mixture": mixture.state_dict(state.mixture),
        "carried": state.carried.to_dict(),
        "signals": copy.deepcopy(state.signals),
        "drawn": dict(zip(job.names, state.mixture.counts.tolist())),
    }


def _check_version(state: Mapping[str, Any]) -> None:
    """
    Raises:
        MismatchError: another release of evenstep wrote the state.
    """
    version = state.get("version") if isinstance(state, Mapping) else None
    if version != _VERSION:
        raise MismatchError(
            f"a planner's state of version {version!r} cannot be read; this release reads version "
            f"{_VERSION}"
        )


def loaded_state(
    state: Mapping[str, Any], *, job: Job, contents: Mapping[str, str], mixture: Mixture
) -> PlannerState:
    """Inverse of `state_to_dict`; loads the mixture too.

    Args:
        contents: by source, see `content_digest`; empty if not known.

    Raises:
        MismatchError: the state is of another release, job or data, or damaged. A state has no
            digest: a number that was replaced by another possible one is not noticed.
    """
    _check_version(state)
    remedy = "load it as state_dict() returned it"
    with parsing("the service's state", remedy=remedy, error=MismatchError):
        check_schema(state, _SCHEMA)
        mixture.load_state_dict(state["mixture"])
        _check_data(state, job=job, contents=contents)
        drawn = {name: source["samples"] for name, source in state["mixture"]["sources"].items()}
        require(drawn == state["drawn"], "drawn", state["drawn"])
        for step, rank, signals in state["signals"]:
            check_schema([step, rank], [COUNT], "signals")
            check_schema(signals, Mapping, "signals")
        return PlannerState(
            step=state["step"],
            mixture=mixture.state,
            carried=_carried_of(state, job.names),
            signals=state["signals"],
        )


def _check_data(state: Mapping[str, Any], *, job: Job, contents: Mapping[str, str]) -> None:
    """
    Args:
        contents: by source, see `content_digest`; empty if not known.

    Raises:
        MismatchError: the state is of other data, or of other modalities than the job has.
    """
    for name, content in state["contents"].items():
        now = contents.get(name)
        if contents and now != content:
            raise MismatchError(
                f"source {name!r} has changed since the state was saved: its files, columns, "
                f"transform or order differ ({content} then, {now} now), so positions name other "
                "samples; restore the source as it was, or start without a state"
            )
    if list(state["columns"]) != list(job.columns):
        raise MismatchError(
            f"the state was saved with lengths of {state['columns']}, and the job has "
            f"{list(job.columns)}; keep its modalities"
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


def content_digest(fingerprint: Mapping[str, Any]) -> str:
    """A short digest of a source's fingerprint; see `SourceLoader.describe`."""
    text = json.dumps(fingerprint, sort_keys=True, default=repr)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
