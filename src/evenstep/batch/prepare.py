"""`PreparingCollator`: a collate function that prepares samples, run on each sample alone.

Some collate functions make tokens and pixels out of raw rows, such as those of TRL, LLaMA-Factory
and most scripts that call a processor. A sample's length is then known only once it has been
collated. So each row is collated alone, in a worker process; what comes out is a sample with a
length, pixels and labels; and a group of such samples is padded, or packed, and its media joined.

Whether that gives what the function itself makes of the group is checked on the first rows, before
training: see `evenstep.batch.alike`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from evenstep.batch.alike import check_alike, padding_of
from evenstep.batch.batch_of_one import unbatch
from evenstep.batch.formats.hugging_face import to_hugging_face
from evenstep.batch.media import MEDIA_FIELDS
from evenstep.batch.media_shape import MediaShape
from evenstep.batch.pack import PackCollator
from evenstep.batch.pad import PadCollator
from evenstep.batch.rope import rope_positions
from evenstep.errors import CollateError, ConfigurationError, described

_ROW = "evenstep_row"
"""Field of a prepared sample that holds the row it was made of."""


@dataclass(frozen=True, kw_only=True)
class PreparingCollator:
    """Prepares rows one by one, and collates groups of prepared samples.

    `evenstep.DataLoader` makes one by itself where the samples of a map-style dataset have no
    ``input_ids`` and there is a `collate_fn`. Build it yourself for an iterable dataset, or to
    set an option.
    """

    collate_fn: Callable[[list[Any]], Any]
    """Rows -> a mapping with ``input_ids`` [rows, tokens] and whatever the model takes."""
    again: bool = False
    """Collate each group by `collate_fn`, from its rows. The samples are prepared twice then: once
    to be measured, and once to be trained on."""
    media_fields: tuple[str, ...] = MEDIA_FIELDS
    """Fields of images, videos and audio: see `evenstep.batch.media`."""
    collator: PadCollator | None = None
    """How groups are padded. None pads as `collate_fn` does, which a loader finds out on a few rows
    of a map-style dataset; else at the right, with 0."""
    packed: bool = False
    """Pack groups into one row, as keyword arguments of a model of transformers: see
    `evenstep.to_hugging_face`. A loader sets it to what its policy says."""
    config: Any = None
    """The model's configuration (``model.config``), which packed groups with images need: some
    models, such as Qwen-VL, place image tokens in time and space."""

    def __post_init__(self) -> None:
        if not callable(self.collate_fn):
            raise ConfigurationError(
                f"collate_fn={self.collate_fn!r} must be a function from a list of rows to a batch"
            )
        if self.again and (self.collator is not None or self.packed):
            raise ConfigurationError(
                "again=True collates and pads by collate_fn; leave out collator, and packed=True "
                "in the policy"
            )

    def prepare(self, row: Any) -> dict[str, Any]:
        """The sample of one row.

        Raises:
            SampleError: the row became several sequences, or none.
            CollateError: `collate_fn` returned something that is not a mapping.
            Exception: what `collate_fn` raises.
        """
        batch = self.collate_fn([_copy(row)])
        if not isinstance(batch, Mapping):
            raise CollateError(
                f"collate_fn returned a {type(batch).__name__} for a row without 'input_ids', and "
                "must return a mapping; or pass length_fn=, a function from a row to its tokens"
            )
        sample = unbatch(batch, self.media_fields)
        if self.again:
            for name, value in sample.items():
                if name in self.media_fields and isinstance(value, torch.Tensor) and value.ndim > 2:
                    sample[name] = MediaShape(tuple(value.shape))
            sample[_ROW] = row
        return sample

    def __call__(self, samples: Sequence[Mapping[str, Any]]) -> Any:
        """Collates one group.

        Raises:
            CollateError: the samples cannot be collated.
        """
        if self.again:
            return self.collate_fn([_copy(sample[_ROW]) for sample in samples])
        if not self.packed:
            return (self.collator or PadCollator(media_fields=self.media_fields))(samples)
        if any(name in sample for sample in samples for name in self.media_fields):
            self._check_packable(samples)
        batch = to_hugging_face(PackCollator(media_fields=self.media_fields)(samples))
        places = [rope_positions(self.config, sample) for sample in samples]
        known = [place for place in places if place is not None]
        if known:
            batch["position_ids"] = torch.cat(known, dim=1)[:, None]  # [4, 1, T]
        return batch

    def _check_packable(self, samples: Sequence[Mapping[str, Any]]) -> None:
        if self.config is None:
            raise CollateError(
                "packed groups with images need to know where the model places image tokens; pass "
                "PreparingCollator(config=model.config)"
            )
        kind = getattr(self.config, "model_type", "")
        if kind.startswith("gemma"):
            raise CollateError(
                f"the model is {kind!r}, whose image tokens attend to those behind them, and "
                "transformers gets that wrong in packed rows; use packed=False"
            )

    def learned(self, rows: Sequence[Any]) -> PreparingCollator:
        """One that pads as `collate_fn` does, and makes the same batches, as far as these rows
        show.

        Args:
            rows: a few, of different lengths, and with and without media.

        Raises:
            CollateError: `collate_fn` makes something else of a group than of its rows alone.
        """
        samples = [replace(self, again=False).prepare(row) for row in rows]
        try:
            theirs = self.collate_fn([_copy(row) for row in rows])
        except Exception as error:
            raise CollateError(
                f"collate_fn takes each of {len(rows)} rows alone, and raises for all of them "
                f"together: {described(error)}"
            ) from error
        if self.again:
            return self
        made = self
        if self.collator is None:
            style = padding_of(samples, theirs, self.media_fields)
            made = replace(self, collator=PadCollator(**style, media_fields=self.media_fields))
        assert made.collator is not None
        check_alike(samples, made.collator(samples), theirs, media=self.media_fields)
        return made


def _copy(row: Any) -> Any:
    """A collate function may take fields out of its rows."""
    return copy.copy(row) if isinstance(row, Mapping) else row
