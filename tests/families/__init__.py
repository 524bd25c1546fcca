"""Model families of transformers that take images, videos or sound, small and without a network.

Each is built of the real model, tokenizer, image processor and processor classes, with random
weights, and has rows and a collate function such as users write. `FAMILIES` has them by name; the
module of each says what its processor returns and how the fields of a group are joined.

    tiny.py         sizes and weights of the models, tokenizers and chat templates
    media.py        images, sounds, videos and rows made from a number
    collate.py      rows -> a batch with labels, as users write it
    qwen_vl.py      Qwen2-VL, Qwen2.5-VL and Qwen3-VL; Qwen2.5-VL with videos
    llava.py        LLaVA-NeXT, LLaVA-OneVision
    idefics.py      Idefics3, SmolVLM
    gemma.py        Gemma 3, InternVL, PaliGemma
    pixtral.py      Pixtral, Mistral 3
    glm.py          GLM-4V
    audio.py        Qwen2-Audio, Whisper
    from_rows.py    Mllama, MiniCPM-V: no entries of the table, as their groups are made of rows

Tests need ``pytest.importorskip`` for transformers and PIL before they import this package.
A test that imports a table is skipped where there is no transformers 5.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import pytest
from transformers import PreTrainedModel, ProcessorMixin

__all__ = ["FAMILIES", "IMAGE_FAMILIES", "Family"]

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
    """Whether each row has exactly one medium, as with Whisper and PaliGemma."""


_OF_IMAGES = {
    "qwen_vl": ("QWEN2_VL", "QWEN2_5_VL", "QWEN3_VL"),
    "llava": ("LLAVA_NEXT", "LLAVA_ONEVISION"),
    "idefics": ("IDEFICS3", "SMOLVLM"),
    "gemma": ("GEMMA3", "INTERNVL"),
    "pixtral": ("PIXTRAL", "MISTRAL3"),
    "glm": ("GLM4V",),
}
_OTHERS = {
    "qwen_vl": ("QWEN2_5_VL_VIDEO",),
    "gemma": ("PALIGEMMA",),
    "audio": ("QWEN2_AUDIO", "WHISPER"),
}


def _table(modules: dict[str, tuple[str, ...]]) -> dict[str, Family]:
    found = [
        getattr(import_module(f"families.{module}"), name)
        for module, names in modules.items()
        for name in names
    ]
    return {family.name: family for family in found}


def __getattr__(name: str) -> Any:
    if name not in ("FAMILIES", "IMAGE_FAMILIES"):
        raise AttributeError(name)
    pytest.importorskip("transformers", minversion="5", reason="the families are of transformers 5")
    of_images = _table(_OF_IMAGES)
    globals().update(IMAGE_FAMILIES=[*of_images], FAMILIES=of_images | _table(_OTHERS))
    return globals()[name]
