"""`Family`: one way in which models and processors of transformers take images, sound or video.

A family is built from the real classes, with random weights and a small vocabulary, and needs no
network. Its rows are what a user's dataset returns, its `collate` what a user hands to a trainer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedModel, ProcessorMixin

Row = dict[str, Any]
Batch = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Family:
    """A table entry. Two calls with the same arguments return the same numbers."""

    name: str
    processor: Callable[[], ProcessorMixin]
    """Builds the processor. One that was built before is not shared, as tests may change it."""
    model: Callable[[int], PreTrainedModel]
    """Seed -> a model of two layers in float32 and training mode, without dropout."""
    row: Callable[..., Row]
    """`row(number, images=None)` -> a raw row; `images` says how many media it has, by default
    ``number % 3`` of them (0 to 2), except where the family's rows always have one."""
    collate: Callable[[Sequence[Row]], Batch]
    """A picklable object: rows -> a batch with labels, as users write it."""
    tower: str
    """The prefix of the names of the parameters that only media reach."""
    padding_side: str = "right"
    """Where its processor pads."""
    pad_token_id: int | None = 0
    """What its processor pads ``input_ids`` with; None where rows have no ``input_ids``."""
    always_media: bool = False
    """Whether each row has exactly one medium, as with Whisper."""
