"""Micro-batches of the vision demo, with pixels and without."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_TEXT = ("input_ids", "labels")


def text_alone(samples: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A packed row, whose pictures are encoded elsewhere."""
    from evenstep.batch.pack import PackCollator  # needs torch, which planners run without

    return PackCollator()([{name: sample[name] for name in _TEXT} for sample in samples])


def text_and_pictures(samples: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A packed row, with grids and pixels of all its pictures."""
    from evenstep.service.job.collators import vision_fields

    made = vision_fields(samples)
    return {**text_alone(samples), **(made if isinstance(made, dict) else {})}
