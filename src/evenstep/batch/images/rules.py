"""Which rule an image processor of transformers follows, by its class."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from evenstep.batch.images.anyres import llava_next, llava_onevision
from evenstep.batch.images.idefics import idefics
from evenstep.batch.images.options import Call, Planned, Size
from evenstep.batch.images.qwen_vl import qwen_vl
from evenstep.batch.images.squares import gemma3, internvl

Rule = Callable[[Call, Sequence[Sequence[Size]], bool], Planned]
"""A call, the sizes of images in one list for each row, and whether they came in such lists, not in
one list of all -> what the image processor returns."""

_RULES: dict[str, Rule] = {
    "Qwen2VLImageProcessor": qwen_vl,
    "LlavaNextImageProcessor": llava_next,
    "LlavaOnevisionImageProcessor": llava_onevision,
    "Idefics3ImageProcessor": idefics,
    "SmolVLMImageProcessor": idefics,
    "Gemma3ImageProcessor": gemma3,
    "GotOcr2ImageProcessor": internvl,
}
_BACKENDS = ("Pil", "Fast")


def rule_of(image_processor: Any) -> Rule | None:
    """The rule of an image processor; None if it is not known, as that of any class which is not
    transformers' own."""
    # Another thread may be preparing a row.
    kind = type(getattr(image_processor, "stands_for", image_processor))
    if kind.__module__.partition(".")[0] != "transformers":
        return None
    name = kind.__name__
    for backend in _BACKENDS:
        name = name.removesuffix(backend)
    return _RULES.get(name)
