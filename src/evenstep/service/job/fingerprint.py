"""The fingerprint of a job: equal for jobs that plan the same, as far as that can be known without
reading data. Functions are identified by their names."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from evenstep.plan.argument_checks import stable_repr

_NUMBERS = (
    "micro_batches",
    "max_tokens",
    "seed",
    "samples_per_step",
    "tokens_per_step",
    "stop",
    "prefetch",
    "loss_reduction",
)


def fingerprint_of(job: Mapping[str, Any]) -> str:
    """16 hexadecimal digits.

    Args:
        job: the fields of a `Job`, and those of its options.
    """
    content = {
        "sources": [
            [s.name, s.paths, s.transform_name, s.weight, s.shuffle, s.seed, s.block]
            for s in job["sources"]
        ],
        "mesh": job["mesh"].to_dict(),
        "functions": [
            _name(job["strategy"]),
            _name(job["schedule"]),
            _name(job["collate"]),
            _name(job["sharding"]),
            _name(job["supervised"]),
            {name: _name(function) for name, function in job["modalities"].items()},
        ],
        "curriculum": _name(job["curriculum"]),
        "numbers": {**{name: job[name] for name in _NUMBERS}, "unit": job["by"]},
        "counted": list(job["counted"]),
    }
    text = json.dumps(content, sort_keys=True, default=_name)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _name(value: Any) -> Any:
    """A function or object as its name."""
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    return getattr(value, "__qualname__", None) or stable_repr(value)
