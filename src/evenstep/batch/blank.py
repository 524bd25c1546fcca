"""`Blank`: the smallest image, for groups without one, so that their ranks run the vision tower.

Under FSDP, ZeRO-3 and DDP, a rank that does not run the vision tower in a step does not join the
tower's collectives, and the others wait forever. So in a group without images, one sample gets the
tokens and the pixels of a blank after its own:

    input_ids   what it has ...  <vision_start> <image> <image> <vision_end>
    labels      what it has ...  -100           -100    -100    -100

Attention is causal, so no token before the blank sees it, and its own labels are -100. So the loss
does not change, and the blank adds exactly zero to every gradient. Its ``attention_mask`` is 1:
packed rows have no other value, and models of the Qwen-VL kind look for images only where it is 1.

Images and sound have a tower each: a group gets the blank if it lacks either.

Where a collate function makes batches of rows, it is given one row more, with an image: `BlankRow`.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from evenstep.batch.columns import TOKENS, tensor_of
from evenstep.batch.joining import copy_of, unlike_beginning
from evenstep.batch.labels import IGNORE_INDEX, LABEL_FIELDS, MAPPINGS, labels_of, size_of
from evenstep.batch.measure import length_of
from evenstep.batch.media import MEDIA_FIELDS, join_media
from evenstep.errors import CollateError, SampleError

SIGHT, SOUND = "images", "sound"
ROW = "evenstep_row"
"""Field of a prepared sample that holds the row it was made of."""

_SOUND_FIELDS = ("input_features", "feature_attention_mask")
LABELS = (*LABEL_FIELDS, "shift_labels")
_OFF = (
    "where no rank waits for the encoder, as under DDP with find_unused_parameters=True, pass "
    "blank=False to leave groups without images as they are"
)


@dataclass(frozen=True, eq=False)
class Blank:
    """Tokens and media that can be appended to those of any sample."""

    fields: Mapping[str, torch.Tensor]
    """``input_ids`` [T], other fields of T tokens, and media as a sample of one image has them."""
    media: tuple[str, ...] = MEDIA_FIELDS
    """Names of media fields, of the blank and of samples."""

    def __reduce__(self) -> Any:
        # Megabytes of white pixels.
        packed = []
        for name, value in self.fields.items():
            data = value.contiguous().view(-1).view(torch.uint8).numpy().tobytes()
            packed.append((name, zlib.compress(data, 1), value.dtype, value.shape))
        return _unpacked, (packed, self.media)

    @property
    def tokens(self) -> int:
        return len(self.fields[TOKENS])

    @property
    def towers(self) -> set[str]:
        return towers_of(self.fields, self.media)

    def added_to(self, samples: Sequence[Any], *, packed: bool = False) -> list[Any]:
        """The group, with the blank appended to one sample; unchanged if it lacks no media.

        Args:
            packed: append it to the last sample, where the row ends. By default it goes to the
                shortest sample, where the batch has most padding.

        Raises:
            CollateError: the blank would change the loss, or might.
        """
        have = {tower for sample in samples for tower in towers_of(sample, self.media)}
        if self.towers <= have:
            return list(samples)
        try:
            lengths = [length_of(sample) for sample in samples]
        except SampleError as error:
            raise CollateError(f"a sample cannot take a blank: {error}; or {_OFF}") from error
        place = len(lengths) - 1 if packed else int(np.argmin(lengths))
        longer = list(samples)
        longer[place] = self._behind(samples[place], lengths[place])
        return longer

    def _behind(self, sample: Any, length: int) -> dict[str, Any]:
        if not isinstance(sample, MAPPINGS) or not labeled(sample):
            raise CollateError(
                "only a mapping with a label for each of its input_ids can take a blank, or it "
                f"would change the loss; return such labels from the dataset, or {_OFF}"
            )
        types = sample.get("token_type_ids")
        if types is not None and not towers_of(sample, self.media) and any(types):
            raise CollateError(
                "a sample without images has token_type_ids other than 0, and tokens that attend "
                f"in both directions would see a blank; {_OFF}"
            )
        longer = dict(sample)
        for name, value in sample.items():
            tensor = None if name in self.media else tensor_of(value)
            if tensor is not None and tensor.ndim and len(tensor) == length:
                longer[name] = torch.cat([tensor, self._tail(name, tensor)])
        own = {name: value for name, value in self.fields.items() if name in self.media}
        # A sample may have images and lack sound.
        both = {n: [tensor_of(sample[n]), own[n]] for n in own if any_of(sample.get(n))}
        return longer | own | join_media(both, self.media, one_each=False)

    def _tail(self, name: str, values: torch.Tensor) -> torch.Tensor:
        """What is appended to a field's values."""
        shape = (self.tokens, *values.shape[1:])
        if name in LABELS:
            return values.new_full(shape, IGNORE_INDEX)
        if name == "attention_mask":
            return values.new_ones(shape)
        if name == "position_ids" and values.ndim == 1:
            return values[-1] + 1 + torch.arange(self.tokens, dtype=values.dtype)
        if name in self.fields:
            return self.fields[name].to(values.dtype).expand(shape)
        return values.new_zeros(shape)


@dataclass(frozen=True, eq=False)
class BlankRow:
    """A row with media, which becomes the last of a batch, and none of whose labels counts."""

    sample: Any
    """As the collate function takes it."""
    media: tuple[str, ...] = MEDIA_FIELDS
    """Names of media fields of batches."""

    def collated(
        self,
        collate_fn: Callable[[list[Any]], Any],
        samples: Sequence[Any],
        towers: set[str],
        *,
        loss_scaling: str,
    ) -> Any:
        """The batch of a group; with one row more where it lacks media that this row has.

        Args:
            towers: which this row has media for.

        Raises:
            CollateError: that row has none, or would change the loss, or might.
        """
        batch = collate_fn(list(map(copy_of, samples)))
        if towers and towers <= towers_of(batch, self.media):
            return batch
        longer = collate_fn([*map(copy_of, samples), copy_of(self.sample)]) if towers else {}
        labels = [name for name in LABELS if name in longer]
        shape = getattr(longer.get(TOKENS), "shape", None)
        why = None
        if not towers:
            why = f"blank= is a row that has none, in any of {self.media}"
        elif loss_scaling not in ("token", "none"):
            why = f"loss_scaling={loss_scaling!r} counts rows"
        elif not labels or any(getattr(longer[name], "shape", None) != shape for name in labels):
            why = "the batch has no label for each of its input_ids"
        elif name := unlike_beginning(batch, longer, len(samples)):
            why = f"collate_fn makes another {name!r} of the same rows where there is one more"
        if why is not None:
            raise CollateError(
                f"a group without images cannot be given a row with one: {why}. Let collate_fn "
                f"give each row without one a small image, without labels; or, {_OFF}"
            )
        for name in labels:
            longer[name] = longer[name].clone()
            longer[name][len(samples) :] = IGNORE_INDEX
        return longer


def towers_of(sample: Any, media: Collection[str] = MEDIA_FIELDS) -> set[str]:
    """Which towers a sample has media for: `SIGHT`, `SOUND`."""
    if not isinstance(sample, MAPPINGS):
        return set()
    present = (name for name in media if name in sample and any_of(sample[name]))
    return {SOUND if name in _SOUND_FIELDS else SIGHT for name in present}


def labeled(sample: Mapping[str, Any]) -> bool:
    """Whether a sample has a label for each token."""
    tokens = size_of(sample.get(TOKENS))
    return tokens is not None and size_of(labels_of(sample)) == tokens


def any_of(value: Any) -> bool:
    """Whether a media field holds anything."""
    empty = isinstance(value, (list, tuple)) and not value
    return value is not None and not empty and getattr(value, "shape", (1,))[:1] != (0,)


def _unpacked(packed: Iterable[Any], media: tuple[str, ...]) -> Blank:
    fields = {
        name: torch.frombuffer(bytearray(zlib.decompress(data)), dtype=dtype).view(shape)
        for name, data, dtype, shape in packed
    }
    return Blank(fields, media)
