"""The smallest `Blank` of a job: made by a processor of the smallest image or sound, or cut from a
prepared sample.

A processor of transformers renders two messages, with the image and without. The tokens that only
the first has represent the image.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from evenstep.batch.blank import LABELS, SIGHT, SOUND, Blank, labeled, towers_of
from evenstep.batch.columns import TOKENS, tensor_of
from evenstep.batch.joining import unbatch
from evenstep.batch.labels import MAPPINGS
from evenstep.batch.measure import length_of
from evenstep.batch.media import MEDIA_FIELDS
from evenstep.errors import ConfigurationError, EvenstepError, described

_SIDE = 32  # pixels; some processors refuse less than a patch of each side
_SECONDS, _RATE = 0.1, 16_000
_TEXT = "a"


def smallest_blank(
    samples: Collection[Any], processor: Any | None, media: tuple[str, ...] = MEDIA_FIELDS
) -> Blank | None:
    """The smallest blank for a job; None where none of its samples has media.

    The processor makes it if its fields are those of the samples; otherwise a sample does.

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


def found_blank(samples: Iterable[Any], media: tuple[str, ...] = MEDIA_FIELDS) -> Blank | None:
    """The smallest blank that prepared samples have, with media for all towers that one of them
    has media for; None where none has media and a label for each token."""
    usable = [sample for sample in samples if isinstance(sample, MAPPINGS) and labeled(sample)]
    without = [sample for sample in usable if not towers_of(sample, media)]
    seen = [sample for sample in usable if towers_of(sample, media)]
    if not seen:
        return None
    smallest = min(seen, key=lambda sample: (-len(towers_of(sample, media)), length_of(sample)))
    return blank_of_sample(smallest, without, media)


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
        # White, because models take a tile of zeros for padding.
        given["images"] = [np.full((_SIDE, _SIDE, 3), 255, np.uint8)]
        if getattr(images, "do_image_splitting", False):
            given["do_image_splitting"] = False
    if SOUND in wanted:
        rate = getattr(getattr(processor, "feature_extractor", None), "sampling_rate", _RATE)
        given["audio"] = [np.zeros(int(_SECONDS * rate), np.float32)]
        given["sampling_rate"] = rate
    errors: list[Exception] = []
    for text in (_message, _tokens):
        try:
            shown = processor(text=[text(processor, wanted)], return_tensors="pt", **given)
            plain = processor(text=[text(processor, ())], return_tensors="pt")
            return blank_of_sample(unbatch(shown, media), [unbatch(plain, media)], media)
        except Exception as error:
            errors.append(error)
    raise ConfigurationError(
        f"{type(processor).__name__} makes no blank of a message with one image of {_SIDE} x "
        f"{_SIDE} pixels: {described(errors[0])}; pass blank= a prepared sample with a small image"
    ) from errors[0]


def blank_of_sample(
    sample: Mapping[str, Any],
    without_media: Iterable[Mapping[str, Any]] = (),
    media: tuple[str, ...] = MEDIA_FIELDS,
) -> Blank:
    """The media of a sample, and the tokens that represent them.

    Args:
        sample: with ``input_ids`` and media.
        without_media: samples of text alone. Without any, and without ``mm_token_type_ids``, the
            blank has all tokens of `sample`.
        media: names of media fields.

    Raises:
        ConfigurationError: `sample` has no ``input_ids``, or no media.
    """
    if not towers_of(sample, media) or TOKENS not in sample:
        has = list(sample) if isinstance(sample, MAPPINGS) else f"a {type(sample).__name__}"
        raise ConfigurationError(
            "blank= must be a processor, or a prepared sample with an image or sound: a "
            f"mapping with 'input_ids' and one of {media}; it is {has}"
        )
    length = length_of(sample)
    found = {name: tensor_of(value) for name, value in sample.items()}
    tensors = {name: value for name, value in found.items() if value is not None}
    kept = _kept(tensors, [tensor_of(other[TOKENS]) for other in without_media])
    fields = {}
    for name, value in tensors.items():
        if name in media and value.numel():
            fields[name] = value.clone()
        elif value.ndim and len(value) == length and name not in (*media, *LABELS):
            fields[name] = value[kept].clone()
    return Blank(fields, media)


def _kept(tensors: Mapping[str, torch.Tensor], without_media: Sequence[Any]) -> slice:
    """Which tokens represent media, with those that begin and end them; all, if that is unknown."""
    kinds = tensors.get("mm_token_type_ids")
    if kinds is not None and kinds.any():
        stands, around = kinds != 0, 1
    else:
        text = torch.cat([tensors[TOKENS][:0], *without_media])
        stands, around = ~torch.isin(tensors[TOKENS], text), 0
    places = stands.nonzero().flatten().tolist() or [0, len(stands) - 1]
    return slice(max(0, places[0] - around), places[-1] + 1 + around)


def _message(processor: Any, wanted: Collection[str]) -> Any:
    kinds = [kind for tower, kind in ((SIGHT, "image"), (SOUND, "audio")) if tower in wanted]
    content = [*({"type": kind} for kind in kinds), {"type": "text", "text": _TEXT}]
    return processor.apply_chat_template([{"role": "user", "content": content}], tokenize=False)


def _tokens(processor: Any, wanted: Collection[str]) -> str:
    """Without a chat template."""
    image = getattr(processor, "boi_token", None) or getattr(processor, "image_token", "")
    sound = getattr(processor, "audio_token", "")
    return f"{image if SIGHT in wanted else ''}{sound if SOUND in wanted else ''}{_TEXT}"
