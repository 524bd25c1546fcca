"""A packed row to what one context-parallel rank trains on, and back.

What has one entry per token is gathered in the order of the rank's fragments. What describes the
documents stays whole, since attention over a part of the row needs to know all of it. Labels are
moved to the token that predicts them *before* they are gathered: the token after a fragment's last
one lies on another rank, so nothing that sees the shard alone could do it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from evenstep.arrays import Int64Array
from evenstep.batch.formats.packed import PackedRow, read_packed
from evenstep.batch.measure import VISION_GRIDS
from evenstep.errors import CollateError, ConfigurationError
from evenstep.plan.sharding import Sharding

__all__ = ["SHARDING", "document_lengths", "shard_batch", "unshard"]


SHARDING = "sharding"
"""The field of a shard that holds its `Sharding`."""

_BOUNDS = ("cu_seqlens_padded", "cu_seqlens", "cu_seq_lens_q")  # the first one present holds
_PLAIN = {"cu_seqlens": "cu_seq_lens_q", "max_seqlen": "max_length_q", "document_ids": "seq_idx"}
"""Fields of the form "flash", and their names in the form "huggingface"."""
_TOKENWISE = ("input_ids", "position_ids", "document_ids", "seq_idx", "loss_mask")
_MADE = ("labels", "loss_mask")  # replaced by those of the next token


def document_lengths(batch: Mapping[str, Any]) -> Int64Array:
    """[documents] int64 tokens of each document as it lies in the row, padding included; where the
    row as a whole is padded, its last document is padding only. A `Sharding` is made of them.

    Args:
        batch: of ``PackCollator()``, in either of its forms.

    Raises:
        CollateError: not one row of documents that fill it.
    """
    batch = batch if isinstance(batch, Mapping) else {}
    if SHARDING in batch:
        raise CollateError(
            "the batch is the shard of a rank already (it has a field 'sharding'); shard the whole "
            "row, once"
        )
    tokens = batch.get("input_ids")
    name = next((name for name in _BOUNDS if name in batch), None)
    if name is None or not isinstance(tokens, torch.Tensor):
        raise CollateError(
            "the batch does not say where its documents begin (no input_ids with cu_seqlens or "
            "cu_seq_lens_q); collate it with PackCollator()"
        )
    if tokens.ndim != 2 or tokens.shape[0] != 1:
        raise CollateError(
            f"input_ids of shape {tuple(tokens.shape)} are not one row [1, tokens], which is what "
            "context-parallel ranks share; collate with PackCollator(), one micro-batch a row"
        )
    bounds = torch.as_tensor(batch[name]).cpu().numpy().astype(np.int64)
    total = tokens.shape[1]
    lengths: Int64Array = np.diff(bounds)
    if bounds.ndim != 1 or len(bounds) < 2 or bounds[0] or bounds[-1] != total or lengths.min() < 1:
        raise CollateError(
            f"{name}={_shortened(bounds)} must ascend from 0 to the {total:,} tokens of the row; "
            "of padded documents give cu_seqlens_padded, as PackCollator() does"
        )
    return lengths


def shard_batch(
    batch: Mapping[str, Any],
    sharding: Sharding,
    rank: int,
    *,
    labels_shifted: bool = False,
    per_sample_fields: Sequence[str] = tuple(VISION_GRIDS.values()),
) -> dict[str, Any]:
    """What context-parallel rank `rank` trains on.

    - ``shift_labels`` int64 [1, T_r]: of each token of the rank the label of the token after it in
      its document, -100 where there is none. There are no ``labels``, which a model would shift
      once more, over fragments that are not neighbours. Loss functions of transformers take them
      under this name.
    - ``loss_mask``, where the batch has one: float32 [1, T_r], of these labels.
    - ``input_ids``, ``position_ids`` (those within documents) and all other fields [1, T, ...]:
      the rank's tokens, [1, T_r, ...], in the order of ``sharding.indices(rank)``.
    - ``cu_seqlens``, ``max_seqlen`` and the like: of the whole row, for attention needs them.
    - ``sharding``: the argument.
    - Everything else, such as fields per document, images and lists: whole.

    T_r may be 0, where the row has fewer tokens than there are ranks.

    Args:
        batch: of ``PackCollator()``, in either of its forms. Not changed.
        sharding: of `document_lengths` of the batch.
        rank: context-parallel rank.
        labels_shifted: the dataset has shifted the labels itself (``mask_first_label=False``), and
            they are taken as they are.
        per_sample_fields: as for ``PackCollator``: fields that go along whole, though they may
            happen to have the shape [1, T, ...].

    Raises:
        CollateError: not such a batch, several rows, a label per document, labels that contradict
            `labels_shifted`, or documents other than those of `sharding`.
        ConfigurationError: there is no such rank.
    """
    sharding.check_rank(rank)
    lengths = document_lengths(batch)
    if not np.array_equal(lengths, sharding.lengths):
        raise CollateError(
            f"the row has {_documents_text(lengths)} and the sharding was made of "
            f"{_documents_text(sharding.lengths)}; make it of document_lengths(batch)"
        )
    known = {ours: batch[theirs] for ours, theirs in _PLAIN.items() if theirs in batch}
    packed = read_packed(known | dict(batch))
    if packed.labels.dtype.is_floating_point:
        raise CollateError(
            f"labels of type {packed.labels.dtype} cannot be sharded; give one whole number per "
            "token"
        )
    whole = {*VISION_GRIDS, *per_sample_fields}
    cut = {name for name, value in batch.items() if name not in whole and _fits(value, packed)}
    for name in _TOKENWISE:
        if name in batch and name not in cut:
            raise CollateError(
                f"field {name!r} of shape {tuple(getattr(batch[name], 'shape', ()))} cannot be "
                f"sharded; it must be [1, {packed.input_ids.shape[1]}, ...], an entry per token"
            )
    labels, mask = packed.next_labels(labels_shifted)
    places = torch.from_numpy(sharding.indices(rank)).to(packed.input_ids.device)
    shard = {
        name: value.index_select(1, places) if name in cut else value
        for name, value in batch.items()
        if name not in _MADE
    }
    shard["shift_labels"] = labels.to(torch.int64).index_select(1, places)
    if packed.loss_mask is not None:
        shard["loss_mask"] = mask.index_select(1, places)
    shard[SHARDING] = sharding
    return shard


def unshard(parts: Sequence[torch.Tensor], sharding: Sharding, *, dim: int = 1) -> torch.Tensor:
    """The ranks' tensors in the order of the sequence.

    Args:
        parts: [ranks] tensors [..., T_r, ...] that differ in dimension `dim` only, each in the
            order of ``sharding.indices(rank)``.
        dim: the dimension of tokens.

    Raises:
        ConfigurationError: not one tensor per rank, or not as many tokens as the rank has.
    """
    if len(parts) != sharding.ranks:
        raise ConfigurationError(
            f"{len(parts)} parts cannot be put together; the sequence was cut over "
            f"{sharding.ranks} ranks"
        )
    for rank, (part, tokens) in enumerate(zip(parts, sharding.tokens.tolist())):
        if not -part.ndim <= dim < part.ndim or part.shape[dim] != tokens:
            raise ConfigurationError(
                f"the part of rank {rank} has shape {tuple(part.shape)}, and dimension {dim} must "
                f"hold the {tokens:,} tokens of the rank"
            )
    return torch.cat(list(parts), dim).index_select(
        dim, torch.from_numpy(sharding.restore).to(parts[0].device)
    )


def _fits(value: Any, packed: PackedRow) -> bool:
    return isinstance(value, torch.Tensor) and value.shape[:2] == packed.input_ids.shape


def _documents_text(lengths: Int64Array) -> str:
    return f"{len(lengths)} documents of {_shortened(lengths)} tokens"


def _shortened(values: Int64Array, limit: int = 6) -> str:
    text = ", ".join(map(str, values[:limit].tolist()))
    return f"[{text}, ...]" if len(values) > limit else f"[{text}]"
