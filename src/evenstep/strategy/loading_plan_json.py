"""Plans as JSON. Exact: the plan that is read back has the same numbers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from evenstep.errors import ConfigurationError, parsing
from evenstep.mixture.sample_table import SampleTable
from evenstep.plan.value_checks import AT_LEAST_1, COUNT, check_schema, require
from evenstep.strategy.assignment import Assignment
from evenstep.strategy.loading_plan import LoadingPlan
from evenstep.strategy.mesh import ClientPlaceTree

_VERSION = 1
_PLAIN = ("step", "axis", "carried_in", "stages", "max_tokens")
_TUPLES = ("modality", "broadcast_at", "notes")
_MAPPINGS = ("methods", "weights")

_NUMBER = range(-1, 2**31)
_SCHEMA = {
    "step": COUNT,
    "axis": str,
    "carried_in": COUNT,
    "stages": str,
    "max_tokens": (AT_LEAST_1, None),
    **{name: [str] for name in _TUPLES},
    "methods": {str: str},
    "weights": {str: float},
    "buckets": range(1, 2**24),
    "micro_batches": range(1, 2**24),
    "bucket": [_NUMBER],
    "micro_batch": [_NUMBER],
    "order": [_NUMBER],
    "cost_type": str,
    "costs": [float],
    "subplans": {str: Mapping},
}


def to_json(plan: LoadingPlan) -> str:
    """One object on one line."""
    given = {
        "version": _VERSION,
        "tree": plan.tree.to_dict(),
        "samples": plan.samples.to_dict(),
        **_decided(plan),
    }
    return json.dumps(given, separators=(",", ":"))


def from_json(text: str) -> LoadingPlan:
    """Inverse of `to_json`.

    Raises:
        ConfigurationError: the version is unknown, or the text is damaged.
    """
    remedy = "read it as to_json wrote it"
    with parsing("a plan", remedy=remedy):
        given = json.loads(text)
    version = given.get("version") if isinstance(given, dict) else None
    if version != _VERSION:
        raise ConfigurationError(
            f"a plan of version {version!r} cannot be read; this release reads {_VERSION}"
        )
    with parsing("a plan", remedy=remedy):
        tree = ClientPlaceTree.from_dict(given["tree"])
        return _plan(given, SampleTable.from_dict(given["samples"]), tree)


def _decided(plan: LoadingPlan) -> dict[str, Any]:
    """All fields except those that subplans share."""
    assignment = plan.assignment
    return {
        **{name: getattr(plan, name) for name in _PLAIN},
        **{name: list(getattr(plan, name)) for name in _TUPLES},
        **{name: dict(getattr(plan, name)) for name in _MAPPINGS},
        "buckets": assignment.buckets,
        "micro_batches": assignment.micro_batches,
        "bucket": assignment.bucket.tolist(),
        "micro_batch": assignment.micro_batch.tolist(),
        "order": assignment.order.tolist(),
        "cost_type": plan.costs.dtype.name,
        "costs": plan.costs.tolist(),
        "subplans": {name: _decided(subplan) for name, subplan in plan.subplans.items()},
        **({} if plan.sample_rows is None else {"one_by_one": True}),
    }


def _plan(given: Mapping[str, Any], samples: SampleTable, tree: ClientPlaceTree) -> LoadingPlan:
    check_schema(given, _SCHEMA)
    sample_rows = None
    if given.get("one_by_one"):
        samples, sample_rows = samples.one_by_one(*given["modality"])
    assignment = Assignment.of(
        given["bucket"],
        given["micro_batch"],
        given["order"],
        buckets=given["buckets"],
        micro_batches=given["micro_batches"],
    )
    for name in ("bucket", "micro_batch", "order", "costs"):
        require(len(given[name]) == len(samples), name, given[name])
    require(given["cost_type"] in ("int64", "float64"), "cost_type", given["cost_type"])
    require(given["buckets"] == tree.bucket_count(given["axis"]), "buckets", given["buckets"])
    require(given["carried_in"] <= len(samples), "carried_in", given["carried_in"])
    for name in given["modality"]:
        require(name in samples.lengths, "modality", name)
    assignment.check()
    decided: dict[str, Any] = {name: given[name] for name in (*_PLAIN, *_MAPPINGS)}
    decided.update({name: tuple(given[name]) for name in _TUPLES})
    plan = LoadingPlan(
        samples=samples,
        sample_rows=sample_rows,
        tree=tree,
        assignment=assignment,
        costs=np.asarray(given["costs"], given["cost_type"]),
        subplans={name: _plan(sub, samples, tree) for name, sub in given["subplans"].items()},
        **decided,
    )
    plan.delivery  # noqa: B018  (checks axes and stages)
    return plan
