"""`PackCollator`: a group of samples as one row [1, tokens], without padding unless asked for it.

Documents lie one after the other in the order of the group. What keeps them apart is `cu_seqlens`
(for variable-length attention kernels), `position_ids` that restart, and `document_ids` (for
block-diagonal masks); and no label asks for a token to be predicted from another document.
`evenstep.batch.formats` turns such a row into the arguments of each training framework.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from evenstep.arrays import rounded_up
from evenstep.batch.columns import (
    TOKENS,
    Columns,
    columns_of,
    listed,
    media_of,
    shapes_text,
    tensors_of,
    with_own_labels,
)
from evenstep.batch.labels import IGNORE_INDEX, LABEL_FIELDS
from evenstep.batch.media import MEDIA_FIELDS
from evenstep.errors import CollateError, ConfigurationError


@dataclass(frozen=True)
class RowLayout:
    """Lengths are in tokens; `T` is the sum of all rooms."""

    lengths: tuple[int, ...]
    """Real tokens of each document; 0 for the last where it is padding only."""
    rooms: tuple[int, ...]
    """The same, padding included."""

    @classmethod
    def of(cls, lengths: list[int], *, document_multiple: int, row_multiple: int) -> RowLayout:
        """Pads each document, then the row, to a multiple; 1 pads nothing."""
        rooms: Sequence[int] = lengths
        if document_multiple > 1:
            rooms = [rounded_up(length, document_multiple) for length in lengths]
        rest = rounded_up(sum(rooms), row_multiple) - sum(rooms)
        if rest:
            return cls((*lengths, 0), (*rooms, rest))
        return cls(tuple(lengths), tuple(rooms))

    @property
    def longest(self) -> int:
        """Tokens of the longest document, padding included."""
        return max(self.rooms)

    @property
    def padded(self) -> bool:
        return self.lengths != self.rooms

    @property
    def starts(self) -> list[int]:
        """Where each document begins in the row."""
        return [0, *accumulate(self.rooms)][:-1]

    def cu_seqlens(self, *, padded: bool) -> torch.Tensor:
        """int32 [documents + 1]: sums of `rooms` if padded, of `lengths` if not."""
        sizes = self.rooms if padded else self.lengths
        return torch.tensor([0, *accumulate(sizes)], dtype=torch.int32)

    def documents(self) -> torch.Tensor:
        """int32 [T]: the document of each token; padding belongs to the document before it."""
        return torch.from_numpy(self._spread(np.arange(len(self.rooms), dtype=np.int32)))

    def positions(self) -> torch.Tensor:
        """int64 [T]: counts from 0 in every document, on through its padding."""
        positions = np.arange(sum(self.rooms))
        positions -= self._spread(np.array(self.starts))
        return torch.from_numpy(positions)

    def place(self, real: torch.Tensor, fill: float | torch.Tensor) -> torch.Tensor:
        """Puts real tokens into the row.

        Args:
            real: [sum of lengths, ...].
            fill: what padding gets: a number, or a tensor [T] of which it takes its part.

        Returns:
            [T, ...], `real` itself where nothing is padded.
        """
        if not self.padded:
            return real
        total = sum(self.rooms)
        if isinstance(fill, torch.Tensor):
            row = fill.to(real.dtype, copy=True)
        else:
            row = real.new_full((total, *real.shape[1:]), fill)
        lengths = torch.tensor(self.lengths)
        before = lengths.cumsum(0) - lengths  # real tokens in front of each document
        shift = torch.repeat_interleave(torch.tensor(self.starts) - before, lengths)
        row[torch.arange(len(shift)) + shift] = real
        return row

    def _spread(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """One value per document to one per token. NumPy does it several times as fast as torch."""
        return values.repeat(self.rooms)


@dataclass(frozen=True, kw_only=True)
class PackCollator:
    """Collates a group of n mappings (or bare token sequences) of T tokens in all.

    Always present: ``input_ids``, ``labels`` and ``position_ids``, int64 [1, T]. A sample's own
    ``position_ids`` are kept; otherwise they count from 0 in every document. Where samples have no
    labels, these are the tokens themselves, the first of each document -100; several labels per
    token become [1, T, ...], one scalar per sample [n]. ``cu_seqlens`` int32 [n + 1] and
    ``max_seqlen`` int are as FlashAttention's variable-length functions and PyTorch's take them;
    ``document_ids`` int32 [1, T] count from 0.

    Other fields: those with [length, ...] in every sample become [1, T, ...]; scalars and tensors
    of equal shape are stacked to [n, ...]; fields of images, videos and audio are joined, and
    samples without any may lack them; the rest becomes a list. An ``attention_mask`` of ones is
    left out, because attention functions that see one take the whole row for a single document.

    Padding, where an option below asks for it, has labels of -100, stands behind the real tokens
    of its document and counts as a part of it; padding that fills up the row is document n. T,
    ``max_seqlen`` and a policy's ``max_tokens`` count padding. Its positions continue those of the
    document; other token-long fields get 0. Then ``cu_seqlens`` has real lengths only, as
    Transformer Engine takes them, and ``cu_seqlens_padded``, of the same shape, says where
    documents begin in the row: a kernel without support for padding takes the latter.
    """

    mask_first_label: bool | None = None
    """Set the first label of each document to -100, if labels are one integer per token: right for
    labels aligned with the input, which the model shifts inside, and harmless where they are -100
    already. False keeps every label: for models that do not shift them, and if the dataset has
    shifted the labels itself (``labels[i]`` is the token after ``input_ids[i]``, the last one
    -100). None does what a loader's ``labels`` says, and masks them where there is no loader."""
    media_fields: tuple[str, ...] = MEDIA_FIELDS
    """Fields of images, videos and audio: see `evenstep.batch.media`."""
    pad_documents_to_multiple_of: int | None = None
    """Pad every document to a multiple of this many tokens: twice the context-parallel ranks, for
    context parallelism that gives each rank two chunks of every document."""
    pad_to_multiple_of: int | None = None
    """Pad the row to a multiple of this many tokens, as 8-bit matrix products require; or, set to
    the most tokens that a row can have, all rows to one shape."""
    pad_token_id: int = 0
    """Pads ``input_ids``."""

    def __post_init__(self) -> None:
        if isinstance(self.media_fields, str):
            raise ConfigurationError(
                f"media_fields={self.media_fields!r} must be a tuple of names, not text"
            )
        for name in ("pad_documents_to_multiple_of", "pad_to_multiple_of"):
            multiple = getattr(self, name)
            if multiple is not None and (type(multiple) is not int or multiple < 1):
                raise ConfigurationError(
                    f"{name}={multiple!r} must be a whole number of tokens from 1, or None for no "
                    "padding"
                )
        document, row = self.pad_documents_to_multiple_of, self.pad_to_multiple_of
        if document and row and row % document:
            raise ConfigurationError(
                f"pad_to_multiple_of={row} must be a multiple of "
                f"pad_documents_to_multiple_of={document}, or the padding that fills up the row "
                "would not be cut like a document"
            )

    def __call__(self, samples: Sequence[Any]) -> dict[str, Any]:
        """Collates one group.

        Raises:
            CollateError: no samples, samples that are neither mappings with ``input_ids`` nor bare
                sequences, empty or already padded samples, labels of another length than the
                tokens, or fields that differ between samples.
        """
        shifted = self.mask_first_label is False
        columns = columns_of(samples, self.media_fields, labels_shifted=shifted)
        if TOKENS not in columns.fields:
            raise CollateError(
                f"samples of type {type(samples[0]).__name__} with fields {list(columns.fields)} "
                "cannot be packed; return mappings with 'input_ids', or pass collate_fn="
            )
        media = media_of(columns, self.media_fields)
        tensors = {
            n: tensors_of(n, values) for n, values in columns.fields.items() if n not in media
        }
        tokens = _token_rows(tensors.pop(TOKENS))
        lengths = [row.shape[0] for row in tokens]
        layout = RowLayout.of(
            lengths,
            document_multiple=self.pad_documents_to_multiple_of or 1,
            row_multiple=self.pad_to_multiple_of or 1,
        )
        joined = torch.cat(tokens).to(torch.int64)
        rows = _label_rows(columns, tensors)
        if rows is None and shifted:
            rows = [with_own_labels({TOKENS: row}, shifted=True)["labels"] for row in tokens]
        labels = self._labels(rows, joined, layout)
        batch: dict[str, Any] = {
            TOKENS: layout.place(joined, self.pad_token_id)[None],
            "labels": labels,
            **media,
        }
        _check_unpadded(tensors.pop("attention_mask", None))
        batch.update(self._boundaries(layout))
        for name, rows in tensors.items():
            if name in batch and name != "position_ids":
                raise CollateError(
                    f"field {name!r} is made by packing and cannot come from the samples; leave it "
                    "out in the dataset"
                )
            if rows is None:
                batch[name] = listed(columns.fields[name])
                continue
            if _sizes(rows) == lengths:
                fill = layout.positions() if name == "position_ids" and rows[0].ndim == 1 else 0
                batch[name] = layout.place(_joined(name, rows), fill)[None]
            else:
                equal = all(row.shape == rows[0].shape for row in rows)
                batch[name] = torch.stack(rows) if equal else rows
        return batch

    def _labels(
        self, labels: list[torch.Tensor] | None, tokens: torch.Tensor, layout: RowLayout
    ) -> torch.Tensor:
        """
        Args:
            tokens: of all samples, joined.
        """
        if labels is None:
            flat = tokens.clone()
        elif all(row.ndim == 0 for row in labels):
            return torch.stack(labels)  # one label per document
        else:
            flat = _joined_labels(labels, layout.lengths)
        flat = layout.place(flat, IGNORE_INDEX)
        # What models shift are the ids of tokens.
        ids = flat.ndim == 1 and not flat.dtype.is_floating_point
        if labels is None or (self.mask_first_label is not False and ids):
            flat[layout.starts] = IGNORE_INDEX
        return flat[None]

    def _boundaries(self, layout: RowLayout) -> dict[str, Any]:
        batch: dict[str, Any] = {
            "position_ids": layout.positions()[None],
            "cu_seqlens": layout.cu_seqlens(padded=False),
            "max_seqlen": layout.longest,
            "document_ids": layout.documents()[None],
        }
        if self.pad_documents_to_multiple_of or self.pad_to_multiple_of:
            batch["cu_seqlens_padded"] = layout.cu_seqlens(padded=True)
        return batch


def _token_rows(rows: list[torch.Tensor] | None) -> list[torch.Tensor]:
    if rows is None or any(row.ndim != 1 for row in rows):
        raise CollateError(
            f"input_ids of shapes {shapes_text(rows or [])} cannot be packed; return "
            "one-dimensional token ids from the dataset"
        )
    if any(row.dtype.is_floating_point for row in rows):
        raise CollateError(
            f"input_ids are {rows[0].dtype} and cannot be packed; return whole numbers from the "
            "dataset (pandas makes fractions of a column in which some are missing)"
        )
    for i, row in enumerate(rows):
        if not row.shape[0]:
            raise CollateError(
                f"sample {i} of the group has no tokens; filter empty samples in the dataset"
            )
    return rows


def _label_rows(
    columns: Columns, tensors: dict[str, list[torch.Tensor] | None]
) -> list[torch.Tensor] | None:
    """Takes the labels out of `tensors`; None where the samples have none."""
    for name in LABEL_FIELDS:
        rows = tensors.pop(name, None)
        if rows is not None:
            return rows
        if listed(columns.fields.get(name, [])):
            raise CollateError(
                f"field {name!r} holds no numbers and cannot be packed; convert it in the dataset"
            )
    return None


def _joined_labels(labels: list[torch.Tensor], lengths: Sequence[int]) -> torch.Tensor:
    for i, (row, length) in enumerate(zip(labels, lengths)):
        if not row.ndim or row.shape[0] != length:
            raise CollateError(
                f"sample {i} of the group has {length} tokens and labels of shape "
                f"{tuple(row.shape)}; packing needs labels for each token, or one per sample; use "
                "packed=False"
            )
    flat = torch.cat(labels)
    # int64 is the type that cross entropy takes.
    return flat if flat.dtype.is_floating_point else flat.to(torch.int64)


def _check_unpadded(masks: list[torch.Tensor] | None) -> None:
    for i, mask in enumerate(masks or []):
        if not mask.all():
            raise CollateError(
                f"sample {i} of the group is padded already (its attention_mask holds zeros), and "
                "padding must not be packed; turn padding off in the tokenizer"
            )


def _sizes(rows: list[torch.Tensor]) -> list[int | None]:
    return [row.shape[0] if row.ndim else None for row in rows]


def _joined(name: str, rows: list[torch.Tensor]) -> torch.Tensor:
    if any(row.shape[1:] != rows[0].shape[1:] for row in rows):
        raise CollateError(
            f"field {name!r} cannot be packed: shapes {shapes_text(rows)} differ in more than "
            "their first dimension; make them equal in the dataset, or pass collate_fn="
        )
    return torch.cat(rows)
