"""A sample's first tokens, or a piece of it, as a sample of its own.

Every field that is as long as the tokens is cut with them: labels, masks, positions. Other fields
stay as they are. What would change a sample's meaning is refused: tokens of an image, video or
sound are never cut off, as the model would look for them; and a sample with them is not split, as
they belong to one piece. Nor is anything cut whose length is not that of one sequence of tokens,
such as the answers of a pair.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np

from evenstep.arrays import Int64Array, rounded_up
from evenstep.batch.blank import ROW
from evenstep.batch.count_media import LATE, describe
from evenstep.batch.labels import MAPPINGS, as_array, is_tensor, size_of
from evenstep.batch.measure import tokens_of
from evenstep.batch.media import MEDIA_FIELDS
from evenstep.errors import SampleError, TooLongError
from evenstep.plan.too_long import pieces_of, too_long

_KINDS = "mm_token_type_ids"
"""Field that is not 0 where a token is an image's, video's or sound's."""


def cut(
    sample: Any,
    begin: int,
    end: int,
    length: int,
    *,
    media: Collection[str] = MEDIA_FIELDS,
    media_tokens: Collection[int] = (),
) -> Any:
    """The tokens from `begin` to `end` of a sample of `length` tokens.

    Args:
        media: fields of images, videos and sounds.
        media_tokens: numbers of tokens that stand for them.

    Raises:
        SampleError: see the module docstring.
    """
    if begin == 0 and end == length:
        return sample
    why = _obstacle(sample, begin, end, length, media, media_tokens)
    if why:
        raise SampleError(
            f"it has {length:,} tokens, over {end - begin:,}, and cannot be cut: {why}; cut it in "
            'the dataset, or leave it out: too_long="skip"'
        )
    if isinstance(sample, MAPPINGS):
        return {
            name: value if name in media else _sliced(name, value, begin, end, length)
            for name, value in sample.items()
        }
    if isinstance(sample, tuple) or (isinstance(sample, list) and tokens_of(sample) is not sample):
        fields = [_sliced("", value, begin, end, length) for value in sample]
        return type(sample)(*fields) if hasattr(sample, "_fields") else type(sample)(fields)
    return _sliced("", sample, begin, end, length)


def _obstacle(
    sample: Any, begin: int, end: int, length: int, media: Collection[str], tokens_of_media: Any
) -> str:
    """Why a sample cannot be cut; nothing where it can."""
    tokens = tokens_of(sample)
    plain = isinstance(sample, (*MAPPINGS, list, tuple, np.ndarray)) or is_tensor(sample)
    if not plain or tokens is None or isinstance(tokens, str) or len(tokens) != length:
        of = list(sample) if isinstance(sample, MAPPINGS) else describe(sample)
        return f"these are not one sequence of input_ids in {of}"
    if not isinstance(sample, MAPPINGS):
        return ""
    if ROW in sample:
        return "collate_fn collates groups from their rows (again=True), so it has to cut"
    if LATE not in sample and all(sample.get(name) is None for name in media):
        return ""
    if begin:
        return "it has images, videos or sounds, which belong to one piece"
    if (kinds := sample.get(_KINDS)) is not None:
        of_media = as_array(kinds) != 0
    elif tokens_of_media:
        of_media = np.isin(as_array(tokens), list(tokens_of_media))
    else:
        return f"it has images, videos or sounds, and no {_KINDS} that say which tokens are theirs"
    return "this would cut tokens of an image, video or sound" if of_media[end:].any() else ""


def _sliced(name: str, value: Any, begin: int, end: int, length: int) -> Any:
    array = (isinstance(value, np.ndarray) or is_tensor(value)) and value.ndim
    if name == "position_ids" and array and value.shape[-1] == length:  # [axes, tokens] or [tokens]
        part = value[..., begin:end]
        return part - part[..., :1] if begin else part  # a piece counts from its own beginning
    if size_of(value) != length:
        return value
    part = value[begin:end]
    return [each - part[0] for each in part] if name == "position_ids" and begin else part


def media_tokens_of(processor: Any) -> tuple[int, ...]:
    """Numbers of the tokens that stand for images, videos and sounds, as a processor of
    transformers names them."""
    names = ("image_token_id", "video_token_id", "audio_token_id")
    found = [getattr(processor, name, None) for name in names]
    return tuple(number for number in found if isinstance(number, int))


@dataclass(frozen=True, kw_only=True)
class Fitting:
    """What becomes of samples that are too long, where they are prepared: see
    `evenstep.plan.too_long`."""

    choice: str
    limit: int
    """Tokens of a sample that is not too long."""
    longest: int | None = None
    """Tokens of a sample that is a group by itself."""
    multiple: int = 1
    """Of tokens to which each sample is padded."""
    media: Collection[str] = MEDIA_FIELDS
    media_tokens: Collection[int] = ()

    def over(self, lengths: Int64Array) -> list[int]:
        """Positions of samples that are too long."""
        found: list[int] = np.flatnonzero(rounded_up(lengths, self.multiple) > self.limit).tolist()
        return found

    def fitted(self, sample: Any, name: str, length: int) -> Any:
        """What is trained on of a sample that is too long.

        Raises:
            TooLongError: nothing.
            SampleError: it cannot be cut.
        """
        room = rounded_up(length, self.multiple)
        padded = f", padded to a multiple of {self.multiple}," * (self.multiple > 1)
        if self.choice == "truncate":
            return self._cut(sample, name, 0, self._most, length)
        if self.choice != "alone" or self.longest is None:
            raise too_long(name + padded, room, self.limit)
        if room > self.longest:
            raise TooLongError(
                f"{name}{padded} has {room:,} tokens, over longest={self.longest:,} of "
                "evenstep.Memory: raise that if there is memory, or cut the sample in the dataset"
            )
        return sample

    def pieces(self, sample: Any, name: str, length: int) -> list[Any]:
        """A sample that is too long, in pieces."""
        made = pieces_of(np.array([length]), self._most, "split")
        ends = zip(made.begins.tolist(), made.ends.tolist())
        return [self._cut(sample, name, begin, end, length) for begin, end in ends]

    @property
    def _most(self) -> int:
        return max(self.limit // self.multiple, 1) * self.multiple

    def _cut(self, sample: Any, name: str, begin: int, end: int, length: int) -> Any:
        about: dict[str, Any] = {"media": self.media, "media_tokens": self.media_tokens}
        try:
            return cut(sample, begin, end, length, **about)
        except SampleError as error:
            raise SampleError(f"{name}: {error}") from error
