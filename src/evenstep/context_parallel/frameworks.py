"""A `Sharding` for the context parallelism of Megatron-LM.

A kernel that takes any sharding needs none of it: see `evenstep.context_parallel.kernels`.

Transformer Engine cuts every packed document (``qkv_format="thd"``) into 2C equal chunks, of which
rank r of C holds chunks r and 2C - 1 - r. Its attention supports no other cut, and cannot detect
one. So a sharding can be handed over only if it is exactly that: `shard_per_document` of documents
whose lengths are multiples of 2C, or `shard_per_sequence` of a single one. Boundaries are those of
the whole row; the attention divides them by C itself.

Megatron-LM's attention is Transformer Engine's. `to_megatron_shard` gives what its
``get_batch_on_this_cp_rank`` returns; other shardings, including per-sequence ones of several
documents, need another attention.

"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from evenstep.batch.formats.train_loops import to_megatron
from evenstep.batch.labels import IGNORE_INDEX
from evenstep.context_parallel.batch_shards import shard_batch
from evenstep.errors import ConfigurationError
from evenstep.plan.sharding import Sharding, shard_per_document


def to_megatron_shard(
    batch: dict[str, Any],
    sharding: Sharding,
    rank: int,
    *,
    labels_shifted: bool = False,
    own_attention: bool = False,
) -> tuple[dict[str, Any], Any]:
    """Makes the fields and the ``PackedSeqParams`` of `to_megatron` for one context-parallel rank.

    ``tokens``, ``labels`` (of the next token), ``loss_mask``, ``position_ids`` and other fields
    [1, T, ...] are the rank's, [1, T_r, ...]. Boundaries are those of the whole row, also
    under the names of padded ones, which context parallelism requires.

    Args:
        batch: from ``PackCollator()``.
        sharding: made from `document_lengths` of the batch. Megatron-LM cuts per document by
            default, and per sequence with ``use_per_sequence_balancing=True``; documents or the
            row must then be multiples of 2C tokens.
        rank: context-parallel rank.
        labels_shifted: as for `to_megatron`.
        own_attention: whether the model's attention follows `sharding`, as
            `evenstep.context_parallel.attention` does, so that any is accepted. False means
            Transformer Engine's.

    Raises:
        CollateError: as for `shard_batch` and `to_megatron`.
        ConfigurationError: there is no such rank, or without `own_attention` the sharding is not
            the one that Transformer Engine assumes.
    """
    if not own_attention:
        _check_thd(sharding)
    shard = shard_batch(batch, sharding, rank, labels_shifted=labels_shifted)
    whole, parameters = to_megatron(
        batch,
        labels_shifted=labels_shifted,
        context_parallel_size=1 if own_attention else sharding.ranks,
    )
    boundaries = ("cu_seqlens", "cu_seqlens_padded", "max_seqlen")
    fields = {
        name: shard[name] if name in shard and name not in boundaries else value
        for name, value in whole.items()
    }
    fields["tokens"] = shard["input_ids"]
    fields["labels"] = shard["shift_labels"]
    fields["loss_mask"] = (fields["labels"] != IGNORE_INDEX).to(torch.float32)
    if sharding.ranks > 1 and fields["cu_seqlens_padded"] is None:
        fields["cu_seqlens_padded"] = fields["cu_seqlens"]
    return fields, parameters


def _check_thd(sharding: Sharding) -> None:
    """
    Raises:
        ConfigurationError: a sharding is not Transformer Engine's cut.
    """
    chunks = 2 * sharding.ranks
    odd = np.flatnonzero(sharding.lengths % chunks)
    remedy = "or use own_attention=True with evenstep.context_parallel.attention"
    if sharding.ranks > 1 and len(odd):
        raise ConfigurationError(
            f"document {odd[0]} has {sharding.lengths[odd[0]]:,} tokens, and Transformer Engine "
            f"cuts every document into {chunks} equal chunks for {sharding.ranks} ranks; pad them "
            f"with PackCollator(pad_documents_to_multiple_of={chunks}), {remedy}"
        )
    theirs = shard_per_document(sharding.lengths, sharding.ranks)
    if not np.array_equal(theirs.permutation, sharding.permutation):
        raise ConfigurationError(
            f"the {sharding.method} sharding is not the cut that Transformer Engine's attention "
            f"assumes, so results would be wrong; use shard_per_document, {remedy}"
        )
