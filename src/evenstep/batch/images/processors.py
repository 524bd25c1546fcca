"""The processor that a collate function uses, and what stands in for its image processor.

`user_processor` finds it on the function, or among what its code refers to. `StandIn` takes the
place of its image processor while a row is prepared. Its result has pixels without memory
(``device="meta"``): they have a shape and a dtype, most functions of torch take them, and reading
their values is an error. Only the thread that prepares sees the stand-in; any other has the real
image processor.

`check_image_tokens` compares a sample's image tokens with what its images make. Where a sequence is
cut after the processor has run, or placeholders are added to it, the two differ: the model would
fail on the whole batch, or put features where they do not belong.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch

from evenstep.batch.images.rules import Call, ImageTokensError, NotPlanned, rule_of


def user_processor(collate_fn: Callable[..., Any]) -> Any | None:
    """The one processor that a collate function holds or refers to, or else that an object held by
    it has; None if there is none, or more than one."""
    held = list(_candidates(collate_fn))
    within = (one for outer in held for one in _attributes(outer))
    for candidates in (held, within):
        found = {id(one): one for one in candidates if is_processor(one)}
        if found:
            return next(iter(found.values())) if len(found) == 1 else None
    return None


def is_processor(value: Any) -> bool:
    """Whether a value makes tokens and media, as processors of transformers do."""
    held = getattr(value, "__dict__", {})
    makers = (held.get("image_processor"), held.get("feature_extractor"))
    return not isinstance(value, type) and callable(value) and any(m is not None for m in makers)


def _candidates(function: Any) -> Iterator[Any]:
    if isinstance(function, functools.partial):
        yield from (*function.args, *function.keywords.values())
        yield from _candidates(function.func)
    elif inspect.ismethod(function):
        yield from _candidates(function.__self__)
    elif inspect.isfunction(function):
        variables = inspect.getclosurevars(function)
        yield from (*variables.nonlocals.values(), *variables.globals.values())
    else:
        yield from _attributes(function)


def _attributes(value: Any) -> Iterator[Any]:
    if not isinstance(value, type | ModuleType):
        yield from getattr(value, "__dict__", {}).values()


_swapping = threading.Lock()


@dataclass(frozen=True)
class TakenCall:
    """A call of an image processor, and what it returned."""

    images: Any
    """As they were passed, those that PIL had not decoded as their files."""
    arguments: Mapping[str, Any]
    result: Mapping[str, Any]


class StandIn:
    """See the module docstring. Everything but the call is the image processor's."""

    def __init__(self, image_processor: Any, *, plans: bool) -> None:
        """
        Args:
            plans: return what follows from the sizes of images; otherwise what the image processor
                returns.
        """
        self.stands_for = image_processor
        self._plans = plans
        self._thread = threading.get_ident()
        self.calls: list[TakenCall] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "stands_for":
            raise AttributeError(name)
        return getattr(self.stands_for, name)

    def __call__(self, images: Any, *more: Any, **arguments: Any) -> Any:
        if threading.get_ident() != self._thread:
            return self.stands_for(images, *more, **arguments)
        if self._plans:
            if more:
                raise NotPlanned("arguments are not named")
            images = _kept(images)
            result = planned(self.stands_for, images, arguments)
        else:
            result = self.stands_for(images, *more, **arguments)
        self.calls.append(TakenCall(images, arguments, dict(result)))
        return result

    preprocess = __call__


def planned(image_processor: Any, images: Any, arguments: Mapping[str, Any]) -> Any:
    """What an image processor will return, by its rule.

    Raises:
        NotPlanned: the rule does not say.
        Exception: what the image processor's own functions raise for a size.
    """
    from PIL import Image
    from transformers import BatchFeature

    rule = rule_of(image_processor)
    if rule is None:
        raise NotPlanned(f"no rule is known for {type(image_processor).__name__}")
    rows, nested = _rows(images)
    for image in flat(rows):
        if not isinstance(image, Image.Image):
            raise NotPlanned(f"an image is a {type(image).__name__}, not one of PIL")
    sizes = [[(image.height, image.width) for image in row] for row in rows]
    call = Call(image_processor, arguments)
    found = rule(call, sizes, nested)
    call.check()
    return BatchFeature(found)


@contextlib.contextmanager
def standing_in(processor: Any, *, plans: bool) -> Iterator[StandIn]:
    """A stand-in takes the place of the processor's image processor within."""
    with _swapping:
        real = processor.image_processor
        stand_in = StandIn(real, plans=plans)
        processor.image_processor = stand_in
        try:
            yield stand_in
        finally:
            processor.image_processor = real


def _rows(images: Any) -> tuple[list[list[Any]], bool]:
    """Images in one list for each row, and whether they came so."""
    if not isinstance(images, Sequence):
        return [[images]], False
    if any(isinstance(each, Sequence) for each in images):
        return [list(row) for row in images], True
    return [list(images)], False


def flat(images: Any) -> list[Any]:
    if isinstance(images, (list, tuple)):
        return [image for each in images for image in flat(each)]
    return [images]


def _kept(images: Any) -> Any:
    if isinstance(images, (list, tuple)):
        return [_kept(each) for each in images]
    from evenstep.batch.images.lazy_images import lazy

    return lazy(images)


def check_image_tokens(sample: Mapping[str, Any], call: TakenCall, processor: Any) -> None:
    """
    Args:
        call: the call of the image processor that the sample's pixels are from.

    Raises:
        ImageTokensError: see the module docstring.
    """
    replace = getattr(processor, "replace_image_token", None)
    token = getattr(processor, "image_token_id", None)
    ids = sample.get("input_ids")
    if replace is None or token is None or not isinstance(ids, torch.Tensor):
        return
    text = processor.tokenizer.convert_ids_to_tokens(token)
    images = len(flat(call.images))
    wanted = sum(replace(call.result, image_idx=i).count(text) for i in range(images))
    has = int((ids == token).sum())
    if has != wanted:
        why = "it was cut" if has < wanted else "it has more placeholders than images"
        raise ImageTokensError(
            f"input_ids has {has:,} image tokens, and its {images} images make {wanted:,}: {why}; "
            "raise max_length in collate_fn, make images smaller, or leave the sample out"
        )
