"""Plans as JSON, exact: numbers are written as they are."""

from __future__ import annotations

import json
from typing import Any

from evenstep.strategy.loading_plan import LoadingPlan

_VERSION = 1
_PLAIN = ("step", "axis", "carried_in", "stages", "max_tokens")
_TUPLES = ("modality", "broadcast_at", "notes")
_MAPPINGS = ("methods", "weights")


def to_json(plan: LoadingPlan) -> str:
    """One object on one line."""
    given = {
        "version": _VERSION,
        "tree": plan.tree.to_dict(),
        "samples": plan.samples.to_dict(),
        **_decided(plan),
    }
    return json.dumps(given, separators=(",", ":"))


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
