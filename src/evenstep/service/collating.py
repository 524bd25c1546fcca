"""What a constructor makes of the samples of a micro-batch, by name or as the user's function."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from evenstep.batch.measure import VISION_GRIDS
from evenstep.batch.memory import cat
from evenstep.batch.pack import PackCollator
from evenstep.batch.pad import PadCollator
from evenstep.errors import ConfigurationError

__all__ = ["COLLATORS", "Collate", "collator_of", "vision_fields"]

Collate = Callable[[Sequence[Any]], Any]

COLLATORS = {"pack": PackCollator, "pad": PadCollator}


def collator_of(given: str | Collate) -> Collate:
    """
    Raises:
        ConfigurationError: neither a name nor a function.
    """
    if isinstance(given, str) and given in COLLATORS:
        collate: Collate = COLLATORS[given]()
        return collate
    if isinstance(given, str) or not callable(given):
        raise ConfigurationError(
            f"collate={given!r} must be one of {', '.join(COLLATORS)}, or a function from a list "
            "of samples to a batch"
        )
    return given


def vision_fields(samples: Sequence[Any]) -> dict[str, Any] | list[Any]:
    """What a vision encoder works on: grids and pixels of all samples, joined in their order. The
    samples themselves where they have no such fields. The default of subplans."""
    joined = {}
    for name in (name for pair in VISION_GRIDS.items() for name in pair):
        found = [s[name] for s in samples if isinstance(s, Mapping) and s.get(name) is not None]
        rows = [torch.as_tensor(value) for value in found]
        if rows:
            joined[name] = cat([row.reshape(-1, row.shape[-1]) for row in rows])
    return joined or list(samples)
