"""`PackCollator`: a group of samples as one row [1, tokens], without padding unless asked for it.

Documents lie one after the other in the order of the group. What keeps them apart is `cu_seqlens`
(for variable-length attention kernels), `position_ids` that restart, and `document_ids` (for
block-diagonal masks); and no label asks for a token to be predicted from another document.
`evenstep.batch.formats` turns such a row into the arguments of each training framework.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from evenstep.arrays import Int64Array, prefix_sums, rounded_up
from evenstep.batch.columns import (
    TOKENS,
    Columns,
    columns_of,
    listed,
    shapes_text,
    with_own_labels,
)
from evenstep.batch.labels import IGNORE_INDEX, LABEL_FIELDS
from evenstep.batch.media import MEDIA_FIELDS, check_media_fields
from evenstep.errors import CollateError, ConfigurationError
from evenstep.plan.value_checks import check_at_least


class RowLayout:
    """Where documents lie in a row of `T` tokens."""

    def __init__(
        self, lengths: Sequence[int], *, document_multiple: int = 1, row_multiple: int = 1
    ) -> None:
        """Pads each document, then the row, to a multiple; 1 pads nothing."""
        self.lengths = np.array(lengths)
        """[documents] real tokens of each; 0 for the last where it is padding only."""
        self.rooms = rounded_up(self.lengths, document_multiple)
        """[documents] the same, padding included."""
        rest = -int(self.rooms.sum()) % row_multiple
        if rest:
            self.lengths, self.rooms = np.append(self.lengths, 0), np.append(self.rooms, rest)
        self.starts = prefix_sums(self.rooms)[:-1]
        """[documents] where each begins in the row."""
        self.documents = np.arange(len(self.rooms), dtype=np.int32).repeat(self.rooms)
        """[T] the document of each token; padding belongs to the document before it."""
        self.positions = np.arange(len(self.documents)) - self.starts.repeat(self.rooms)
        """[T] counts from 0 in every document, on through its padding."""

    def place(self, real: torch.Tensor, fill: float | torch.Tensor) -> torch.Tensor:
        """Puts real tokens into the row.

        Args:
            real: [sum of lengths, ...].
            fill: what padding gets: a number, or a tensor [T] of which it takes its part.

        Returns:
            [T, ...], `real` itself where nothing is padded.
        """
        if len(real) == len(self.positions):
            return real
        if isinstance(fill, torch.Tensor):
            row = fill.to(real.dtype, copy=True)
        else:
            row = real.new_full((len(self.positions), *real.shape[1:]), fill)
        row[torch.from_numpy(self.positions < self.lengths.repeat(self.rooms))] = real
        return row


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
        check_media_fields(self.media_fields)
        document, row = self.pad_documents_to_multiple_of, self.pad_to_multiple_of
        check_at_least(1, pad_documents_to_multiple_of=document, pad_to_multiple_of=row)
        if document and row and row % document:
            raise ConfigurationError(
                f"pad_to_multiple_of={row} must be a multiple of pad_documents_to_multiple_of="
                f"{document}, so that the padding that fills up the row is cut like a document"
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
        tensors = dict(columns.tensors)
        tokens = _token_rows(tensors.pop(TOKENS))
        lengths = [len(row) for row in tokens]
        each, whole = self.pad_documents_to_multiple_of, self.pad_to_multiple_of
        layout = RowLayout(lengths, document_multiple=each or 1, row_multiple=whole or 1)
        joined = torch.cat(tokens).to(torch.int64)
        rows = _label_rows(columns, tensors)
        if rows is None and shifted:
            rows = [with_own_labels({TOKENS: row}, shifted=True)["labels"] for row in tokens]
        _check_unpadded(tensors.pop("attention_mask", None))
        positions = torch.from_numpy(layout.positions)
        batch: dict[str, Any] = {
            TOKENS: layout.place(joined, self.pad_token_id)[None],
            "labels": self._labels(rows, joined, layout),
            **columns.media,
            "position_ids": positions[None],
            "cu_seqlens": _bounds(layout.lengths),
            "max_seqlen": int(layout.rooms.max()),
            "document_ids": torch.from_numpy(layout.documents)[None],
        }
        if each or whole:
            batch["cu_seqlens_padded"] = _bounds(layout.rooms)
        for name, rows in tensors.items():
            if name in batch and name != "position_ids":
                raise CollateError(
                    f"field {name!r} is made by packing and cannot come from the samples; leave it "
                    "out in the dataset"
                )
            if rows is None:
                batch[name] = listed(columns.fields[name])
            elif [row.shape[0] if row.ndim else None for row in rows] == lengths:
                fill = positions if name == "position_ids" and rows[0].ndim == 1 else 0
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
            flat[torch.from_numpy(layout.starts)] = IGNORE_INDEX
        return flat[None]


def _bounds(sizes: Int64Array) -> torch.Tensor:
    """int32 [documents + 1]"""
    return torch.from_numpy(prefix_sums(sizes).astype(np.int32))


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


def _joined_labels(labels: list[torch.Tensor], lengths: Int64Array) -> torch.Tensor:
    for i, (row, length) in enumerate(zip(labels, lengths)):
        if not row.ndim or row.shape[0] != length:
            raise CollateError(
                f"sample {i} of the group has {length} tokens and labels of shape "
                f"{tuple(row.shape)}, not one for each or one in all; use packed=False"
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


def _joined(name: str, rows: list[torch.Tensor]) -> torch.Tensor:
    if any(row.shape[1:] != rows[0].shape[1:] for row in rows):
        raise CollateError(
            f"field {name!r} cannot be packed: shapes {shapes_text(rows)} differ in more than "
            "their first dimension; make them equal in the dataset, or pass collate_fn="
        )
    return torch.cat(rows)
