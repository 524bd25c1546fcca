"""A packed row to what one context-parallel rank trains on, and back.

Fields with one entry per token are gathered in the order of the rank's fragments. Fields that
describe the documents stay whole, since attention over a part of the row needs all of them. Labels
are moved to the token that predicts them *before* they are gathered: the token after a fragment's
last one lies on another rank, so the shard alone would not suffice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from evenstep.arrays import Int64Array
from evenstep.batch.formats.packed import PackedRow, read_packed
from evenstep.batch.media import MEDIA_FIELDS
from evenstep.errors import CollateError, ConfigurationError
from evenstep.plan.sharding import Sharding
from evenstep.plan.value_checks import shorten

SHARDING = "sharding"
"""The field of a shard that holds its `Sharding`."""

_BOUNDS = ("cu_seqlens_padded", "cu_seqlens")  # the first one present counts
_TOKENWISE = ("input_ids", "position_ids", "document_ids")


def document_lengths(batch: Mapping[str, Any]) -> Int64Array:
    """Reads the lengths of documents, from which a `Sharding` is made.

    Args:
        batch: from ``PackCollator()``.

    Returns:
        [documents] int64 tokens of each document in the row, padding included. If the row as a
        whole is padded, its last document is nothing but padding.

    Raises:
        CollateError: not a single row of documents that fill it.
    """
    batch = batch if isinstance(batch, Mapping) else {}
    if SHARDING in batch:
        raise CollateError("the batch is a rank's shard already; shard the whole row, once")
    tokens = batch.get("input_ids")
    name = next((name for name in _BOUNDS if name in batch), None)
    if name is None or not isinstance(tokens, torch.Tensor):
        raise CollateError(
            "the batch lacks input_ids or cu_seqlens; collate it with PackCollator()"
        )
    if tokens.ndim != 2 or tokens.shape[0] != 1:
        raise CollateError(
            f"input_ids of shape {tuple(tokens.shape)} must be one row [1, tokens]; collate with "
            "PackCollator(), one micro-batch per row"
        )
    bounds = torch.as_tensor(batch[name]).cpu().numpy().astype(np.int64)
    total = tokens.shape[1]
    lengths: Int64Array = np.diff(bounds)
    if bounds.ndim != 1 or len(bounds) < 2 or bounds[0] or bounds[-1] != total or lengths.min() < 1:
        raise CollateError(
            f"{name}={shorten(bounds.tolist())} must ascend from 0 to the {total:,} tokens of the "
            "row; for padded documents give cu_seqlens_padded, as PackCollator() does"
        )
    return lengths


def shard_batch(
    batch: Mapping[str, Any],
    sharding: Sharding,
    rank: int,
    *,
    labels_shifted: bool = False,
) -> dict[str, Any]:
    """Makes the batch that context-parallel rank `rank` trains on.

    - ``shift_labels`` int64 [1, T_r]: for each token of the rank the label of the token after it in
      its document, -100 if there is none. There are no ``labels``, which a model would shift once
      more, across fragments that are not neighbours. Loss functions of transformers take shifted
      labels under this name.
    - ``input_ids``, ``position_ids`` (positions within documents) and all other fields
      [1, T, ...]: the rank's tokens, [1, T_r, ...], in the order of ``sharding.indices(rank)``.
    - ``cu_seqlens``, ``max_seqlen`` and the like: those of the whole row, as attention needs.
    - ``sharding``: the argument.
    - Everything else, such as fields per document, images and lists: whole.

    T_r may be 0 if the row has fewer tokens than there are ranks.

    Args:
        batch: from ``PackCollator()``. It is not changed.
        sharding: made from `document_lengths` of the batch.
        rank: context-parallel rank.
        labels_shifted: whether the dataset has shifted the labels itself
            (``mask_first_label=False``); they are then taken as they are.

    Raises:
        CollateError: not such a batch, several rows, a label per document, labels that contradict
            `labels_shifted`, or documents other than those of `sharding`.
        ConfigurationError: there is no such rank.
    """
    sharding.check_rank(rank)
    if not np.array_equal(lengths := document_lengths(batch), sharding.lengths):
        rows = [shorten(each.tolist()) for each in (lengths, sharding.lengths)]
        raise CollateError(
            f"the row has documents of {rows[0]} tokens, and the sharding was made for {rows[1]}; "
            "make it from document_lengths(batch)"
        )
    packed = read_packed(batch)
    if packed.labels.dtype.is_floating_point:
        raise CollateError(f"labels of {packed.labels.dtype} cannot be sharded; give whole numbers")
    cut = _cut_fields(batch, packed)
    labels = packed.next_labels(labels_shifted)
    positions = torch.from_numpy(sharding.indices(rank)).to(packed.input_ids.device)
    shard = {
        name: value.index_select(1, positions) if name in cut else value
        for name, value in batch.items()
        if name != "labels"
    }
    shard["shift_labels"] = labels.to(torch.int64).index_select(1, positions)
    shard[SHARDING] = sharding
    return shard


def _cut_fields(batch: Mapping[str, Any], packed: PackedRow) -> set[str]:
    """Names of the fields with an entry per token, of which a rank gets its own: not of media,
    whatever their shape."""
    cut = {
        name
        for name, value in batch.items()
        if name not in MEDIA_FIELDS
        and isinstance(value, torch.Tensor)
        and value.shape[:2] == packed.input_ids.shape
    }
    for name in _TOKENWISE:
        if name in batch and name not in cut:
            raise CollateError(
                f"field {name!r} of shape {tuple(getattr(batch[name], 'shape', ()))} cannot be "
                f"sharded; it must be [1, {packed.input_ids.shape[1]}, ...], an entry per token"
            )
    return cut


def unshard(parts: Sequence[torch.Tensor], sharding: Sharding, *, dim: int = 1) -> torch.Tensor:
    """Puts the ranks' tensors back into the order of the sequence.

    Args:
        parts: [ranks] tensors [..., T_r, ...] that differ in dimension `dim` only, each in the
            order of ``sharding.indices(rank)``.
        dim: the dimension of tokens.

    Raises:
        ConfigurationError: not one tensor per rank, or not as many tokens as the rank has.
    """
    if len(parts) != sharding.ranks:
        raise ConfigurationError(
            f"{len(parts)} parts must be one of each of the {sharding.ranks} ranks"
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
