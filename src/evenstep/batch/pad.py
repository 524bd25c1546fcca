"""`PadCollator`: a group of samples as rows padded to the longest of the group.

A field is padded where its first dimension is the sample's length in every sample, or differs
between samples. Everything else is stacked as it is, or listed if it is not numbers. Each field is
one allocation and one copy per row.

`DefaultCollator` pads samples that have tokens, and collates any others as torch's DataLoader does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import default_collate

from evenstep.arrays import rounded_up
from evenstep.batch.columns import TOKENS, Columns, columns_of, listed, shapes_text
from evenstep.batch.labels import IGNORE_INDEX, LABEL_FIELDS
from evenstep.batch.media import MEDIA_FIELDS, check_media_fields
from evenstep.errors import CollateError, ConfigurationError
from evenstep.plan.value_checks import check_at_least, check_one_of

WAVEFORM = "input_values"
"""The field of raw audio, as models of transformers take it."""


@dataclass(frozen=True, kw_only=True)
class PadCollator:
    """Collates a group with padding: mappings to a dict, bare sequences to one tensor.

    Shapes: a field with [length, ...] per sample becomes [samples, longest, ...]; scalars become
    [samples]; tensors of equal shape [samples, ...]. Text and other objects become a list, and
    a field that is None in every sample stays None. Fields of images, videos and audio are joined
    along their first dimension, as their models require, and may be absent from samples without
    any: see `evenstep.batch.media`. Mappings that have none get an int64 ``attention_mask``, 1 for
    real tokens, or for real samples of waveforms (``input_values``).
    """

    side: str = "right"
    """Where the padding goes: "right" or "left". Waveforms, and beside tokens what is not as long
    as these, such as the labels of encoder-decoders, are padded on the right, as models want it."""
    pad_token_id: int = 0
    """Pads ``input_ids`` and bare sequences."""
    pad_values: Mapping[str, float] = field(default_factory=dict)
    """Field -> padding. By default labels are padded with -100, and every other field with 0."""
    pad_to_multiple_of: int | None = None
    """Rounds the padded length of labels, and of fields as long as the tokens, up to a multiple."""
    media_fields: tuple[str, ...] = MEDIA_FIELDS
    """Fields of images, videos and audio."""

    def __post_init__(self) -> None:
        check_one_of(("right", "left"), side=self.side)
        check_at_least(1, pad_to_multiple_of=self.pad_to_multiple_of)
        check_media_fields(self.media_fields)
        for name, value in {"pad_token_id": self.pad_token_id, **self.pad_values}.items():
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise ConfigurationError(
                    f"the padding of {name!r} is {value!r} and must be a number"
                )

    def __call__(self, samples: Sequence[Any]) -> Any:
        """Collates one group.

        Raises:
            CollateError: no samples, a sample without tokens, fields that differ between samples,
                shapes that cannot be padded to one, padding that the dtype cannot hold, or of
                fractions without a mask.
        """
        columns = columns_of(samples, self.media_fields)
        lengths = _lengths(columns.tensors.get(TOKENS if TOKENS in columns.fields else WAVEFORM))
        batch: dict[str, Any] = {}
        for name, values in columns.fields.items():
            if name in columns.media:
                batch[name] = columns.media[name]
            elif (rows := columns.tensors[name]) is None:
                batch[name] = listed(values)
            else:
                batch[name] = self._collate(columns, name, rows, lengths)
        if columns.bare:
            return batch[TOKENS]
        if "attention_mask" not in batch and lengths is not None:
            real = [torch.ones(length, dtype=torch.int64) for length in lengths]
            batch["attention_mask"] = self._collate(columns, "attention_mask", real, lengths)
        return batch

    def _collate(
        self, columns: Columns, name: str, rows: list[torch.Tensor], lengths: list[int] | None
    ) -> torch.Tensor:
        sizes = [row.shape[0] if row.ndim else None for row in rows]
        longest = max((size for size in sizes if size is not None), default=0)
        target = longest
        as_tokens = sizes == lengths
        # Numbers that are no ids are a vector for each sample, and no sequence.
        ids = rows[0].ndim > 0 and not rows[0].is_floating_point()
        if as_tokens or (name in LABEL_FIELDS and ids):
            target = rounded_up(longest, self.pad_to_multiple_of or 1)
        if target == longest and all(row.shape == rows[0].shape for row in rows):
            return torch.stack(rows)
        if any(row.shape[1:] != rows[0].shape[1:] for row in rows) or None in sizes:
            raise CollateError(
                f"field {name!r} cannot be padded: shapes {shapes_text(rows)} differ in more than "
                "their first dimension; make them equal in the dataset, or pass collate_fn="
            )
        value = self._padding(name, rows[0].dtype)
        if not as_tokens and rows[0].is_floating_point():
            self._check_masked(columns, name, sizes)
        tokens = as_tokens and TOKENS in columns.fields
        side = self.side if lengths is None or tokens else "right"
        padded = pad_sequence(rows, batch_first=True, padding_value=value, padding_side=side)
        if target == longest:
            return padded
        extra = padded.new_full((len(rows), target - longest, *padded.shape[2:]), value)
        return torch.cat([padded, extra] if side == "right" else [extra, padded], dim=1)

    def _padding(self, name: str, dtype: torch.dtype) -> float:
        if name in self.pad_values:
            value = self.pad_values[name]
        elif name == TOKENS:
            value = self.pad_token_id
        else:
            value = IGNORE_INDEX if name in LABEL_FIELDS else 0
        if not _holds(dtype, value):
            raise CollateError(
                f"field {name!r} is {dtype} and cannot hold its padding {value}; convert it in the "
                f"dataset, or set pad_values={{{name!r}: ...}}"
            )
        return value

    def _check_masked(self, columns: Columns, name: str, sizes: list[int | None]) -> None:
        """
        Raises:
            CollateError: nothing would tell the model what of a recording, say, is padding.
        """
        known = name in LABEL_FIELDS or name in self.pad_values
        if not known and sizes != [len(mask) for mask in columns.fields.get("attention_mask", [])]:
            raise CollateError(
                f"field {name!r} needs padding, and no attention_mask would say what is real: give "
                f"one as long; or, if none is needed, pass PadCollator(pad_values={{{name!r}: 0}})"
            )


def _lengths(tokens: list[torch.Tensor] | None) -> list[int] | None:
    if tokens is None or any(row.ndim != 1 for row in tokens):
        return None
    lengths = [row.shape[0] for row in tokens]
    if 0 in lengths:
        raise CollateError(
            f"sample {lengths.index(0)} of the group has no tokens; filter empty samples in the "
            "dataset"
        )
    return lengths


def _holds(dtype: torch.dtype, value: float) -> bool:
    if dtype.is_floating_point or dtype.is_complex:
        return True
    if dtype == torch.bool:
        return value in (0, 1)
    limits = torch.iinfo(dtype)
    return value == int(value) and limits.min <= value <= limits.max


def padded_multiple(collate_fn: Any) -> int | None:
    """The ``pad_to_multiple_of`` of a collate function: its own, as collators of transformers and
    TRL have it, that of a partial function, or of the collator in Trainer's wrapper."""
    said = getattr(collate_fn, "keywords", {}).get("pad_to_multiple_of")
    found: int | None = getattr(collate_fn, "pad_to_multiple_of", said)
    for name in ("data_collator", "func", "__self__"):
        inner = getattr(collate_fn, name, None)
        if found is None and inner is not None:
            found = padded_multiple(inner)
    return found


@dataclass(frozen=True)
class DefaultCollator:
    """Collates a group of mappings that have ``input_ids`` or ``input_values`` as `PadCollator`
    does; of anything else as ``torch.utils.data.default_collate`` does."""

    def __call__(self, samples: Sequence[Any]) -> Any:
        """Collates one group.

        Raises:
            CollateError: as `PadCollator`.
            RuntimeError, TypeError: as torch's, of tensors that differ in shape for instance.
        """
        first = samples[0]
        if isinstance(first, Mapping) and (TOKENS in first or WAVEFORM in first):
            return PadCollator()(samples)
        return default_collate(list(samples))
