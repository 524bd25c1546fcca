"""A `Blank` as a processor of transformers makes it, of the smallest image or sound.

The processor renders two messages, with the image and without. Tokens that only the first has
stand for the image.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np

from evenstep.batch.batch_of_one import unbatch
from evenstep.batch.blank import SIGHT, SOUND, Blank, found_blank
from evenstep.batch.media import MEDIA_FIELDS
from evenstep.errors import ConfigurationError, EvenstepError, described

_SIDE = 32  # pixels; some processors refuse less than a patch of each side
_SECONDS = 0.1
_TEXT = "a"


def smallest_blank(
    samples: Collection[Any], processor: Any | None, media: tuple[str, ...] = MEDIA_FIELDS
) -> Blank | None:
    """The smallest blank for a job; None where none of its samples has media.

    It is the processor's, if that has the fields that these samples have, else one of a sample's.

    Args:
        samples: a few prepared ones.
        processor: of transformers, or None.
        media: names of media fields.
    """
    found = found_blank(samples, media)
    if found is None or processor is None:
        return found
    try:
        made = blank_of(processor, found.towers, media)
    except EvenstepError:
        return found
    shapes = [{n: v.ndim for n, v in each.fields.items() if n in media} for each in (made, found)]
    return made if shapes[0] == shapes[1] else found


def blank_of(
    processor: Any,
    wanted: Collection[str] | None = None,
    media: tuple[str, ...] = MEDIA_FIELDS,
) -> Blank:
    """The blank that a processor makes.

    Args:
        wanted: the towers that it is for; by default the one for images, if there is one.
        media: names of media fields.

    Raises:
        ConfigurationError: the processor makes nothing of a message with the smallest image.
    """
    images = getattr(processor, "image_processor", None)
    if wanted is None:
        wanted = {SOUND} if images is None else {SIGHT}
    given: dict[str, Any] = {}
    if SIGHT in wanted:
        # White: a tile of zeros would be taken for padding.
        given["images"] = [np.full((_SIDE, _SIDE, 3), 255, np.uint8)]
        if getattr(images, "do_image_splitting", False):
            given["do_image_splitting"] = False
    if SOUND in wanted:
        rate = processor.feature_extractor.sampling_rate
        given["audio"] = [np.zeros(int(_SECONDS * rate), np.float32)]
        given["sampling_rate"] = rate
    errors: list[Exception] = []
    for text in (_message, _tokens):
        try:
            shown = processor(text=[text(processor, wanted)], return_tensors="pt", **given)
            plain = processor(text=[text(processor, ())], return_tensors="pt")
            return Blank.of_sample(unbatch(shown, media), [unbatch(plain, media)], media)
        except Exception as error:
            errors.append(error)
    raise ConfigurationError(
        f"{type(processor).__name__} makes no blank of a message with one image of {_SIDE} x "
        f"{_SIDE} pixels: {described(errors[0])}; pass blank= a prepared sample with a small image"
    ) from errors[0]


def _message(processor: Any, wanted: Collection[str]) -> str:
    kinds = [kind for tower, kind in ((SIGHT, "image"), (SOUND, "audio")) if tower in wanted]
    content = [*({"type": kind} for kind in kinds), {"type": "text", "text": _TEXT}]
    text: str = processor.apply_chat_template(
        [{"role": "user", "content": content}], tokenize=False
    )
    return text


def _tokens(processor: Any, wanted: Collection[str]) -> str:
    """Without a chat template."""
    image = getattr(processor, "boi_token", None) or getattr(processor, "image_token", "")
    sound = getattr(processor, "audio_token", "")
    return f"{image if SIGHT in wanted else ''}{sound if SOUND in wanted else ''}{_TEXT}"
