"""A `Sharding` in the format of each framework's own context parallelism.

Pure functions; none imports the framework that it serves, except PyTorch. A kernel that takes any
sharding needs none of it: see `evenstep.context_parallel.kernels`.

Transformer Engine cuts every packed document (``qkv_format="thd"``) into 2C equal chunks, of which
rank r of C holds chunks r and 2C - 1 - r. Its attention supports no other cut, and cannot detect
one. So a sharding can be handed over only if it is exactly that: `shard_per_document` of documents
whose lengths are multiples of 2C, or `shard_per_sequence` of a single one. Boundaries are those of
the whole row; the attention divides them by C itself.

Megatron-LM's attention is Transformer Engine's. `to_megatron_shard` gives what its
``get_batch_on_this_cp_rank`` returns; other shardings, including per-sequence ones of several
documents, need another attention.

PyTorch asks an object, `LoadBalancer`, how to permute a sequence so that the ranks' tokens follow
each other, and cuts the result into equal parts: so all ranks must have equally many tokens.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from evenstep.batch.formats.train_loops import to_megatron
from evenstep.context_parallel.batch_shards import shard_batch
from evenstep.errors import ConfigurationError
from evenstep.plan.sharding import Sharding, shard_per_document


class LoadBalancer:
    """A `Sharding` as the ``load_balancer`` of functions in
    ``torch.distributed.tensor.experimental``.

    It has the method that they call, and no PyTorch class as a base, since those are prototypes
    with private names. If a release requires its own class, register this one with that abstract
    base class: ``TheirClass.register(LoadBalancer)``.
    """

    def __init__(self, sharding: Sharding, device: torch.device | str = "cpu") -> None:
        """
        Args:
            sharding: of any method.
            device: device of the tensors that will be cut.

        Raises:
            ConfigurationError: ranks have different numbers of tokens.
        """
        if np.ptp(sharding.tokens):
            tokens = int(sharding.tokens.sum())
            raise ConfigurationError(
                f"ranks have {sharding.tokens.tolist()} tokens, and PyTorch's context parallelism "
                f"cuts the {tokens:,} tokens of the row into {sharding.ranks} equal parts; use "
                f"PackCollator(pad_to_multiple_of={sharding.ranks})"
            )
        self.sharding = sharding
        self._indices = torch.from_numpy(sharding.permutation)[None].to(device)
        self._restore = torch.from_numpy(sharding.restore)[None].to(device)

    def _generate_indices(self, restore: bool = False) -> torch.Tensor:
        """int64 [1, T]: positions in the sequence in the order of the ranks, or the inverse."""
        return self._restore if restore else self._indices


def thd_partitioned_indices(sharding: Sharding, rank: int) -> torch.Tensor:
    """int32 [T / C]: the rank's tokens, as Transformer Engine's
    ``thd_get_partitioned_indices(cu_seqlens, total_tokens, world_size, rank)`` returns them.

    Raises:
        ConfigurationError: there is no such rank, a document's length is not a multiple of 2C, or
            the documents are cut in another way.
    """
    sharding.check_rank(rank)
    check_thd(sharding)
    return torch.from_numpy(sharding.indices(rank).astype(np.int32))


def transformer_engine_arguments(
    sharding: Sharding, cu_seqlens: torch.Tensor | None = None
) -> dict[str, Any]:
    """Keyword arguments for Transformer Engine's ``DotProductAttention``, the same on every rank.

    Args:
        sharding: made from the documents as they are in the row, padding included.
        cu_seqlens: int32 [documents + 1] sums of real lengths, for kernels that skip the padding
            between documents; not all can. None treats padding as a document's last tokens, which
            no real token sees.

    Returns:
        ``qkv_format``, ``attn_mask_type``, ``cu_seqlens_q`` and ``_kv``, the same ``_padded``
        (int32 [documents + 1], always present, as context parallelism requires them),
        ``max_seqlen_q`` and ``_kv``; and ``pad_between_seqs`` if `cu_seqlens` differs from the
        padded ones.

    Raises:
        ConfigurationError: as for `thd_partitioned_indices`; or `cu_seqlens` of other documents.
    """
    check_thd(sharding)
    padded = torch.from_numpy(sharding.begins.astype(np.int32))
    real = padded if cu_seqlens is None else _checked(cu_seqlens, sharding)
    longest = int(sharding.lengths.max())
    arguments: dict[str, Any] = {
        "qkv_format": "thd",
        "attn_mask_type": "padding_causal",
        "cu_seqlens_q": real,
        "cu_seqlens_kv": real,
        "cu_seqlens_q_padded": padded.to(real.device),
        "cu_seqlens_kv_padded": padded.to(real.device),
        "max_seqlen_q": longest,
        "max_seqlen_kv": longest,
    }
    if bool((real != arguments["cu_seqlens_q_padded"]).any()):
        arguments["pad_between_seqs"] = True
    return arguments


def check_thd(sharding: Sharding, otherwise: str = "evenstep.context_parallel.attention") -> None:
    """Checks that a sharding is Transformer Engine's cut.

    Args:
        otherwise: the remedy: what runs any sharding.

    Raises:
        ConfigurationError: it is another.
    """
    chunks = 2 * sharding.ranks
    odd = np.flatnonzero(sharding.lengths % chunks)
    if sharding.ranks > 1 and len(odd):
        raise ConfigurationError(
            f"document {odd[0]} has {sharding.lengths[odd[0]]:,} tokens, and Transformer Engine "
            f"cuts every document into {chunks} equal chunks for {sharding.ranks} ranks; pad them "
            f"with PackCollator(pad_documents_to_multiple_of={chunks}), or use {otherwise}, which "
            "needs no padding"
        )
    theirs = shard_per_document(sharding.lengths, sharding.ranks)
    if not np.array_equal(theirs.permutation, sharding.permutation):
        raise ConfigurationError(
            f"the {sharding.method} sharding is not the cut that Transformer Engine's attention "
            "assumes, so results would be wrong without an error; use shard_per_document, or "
            f"{otherwise}, which runs any sharding"
        )


def _checked(cu_seqlens: torch.Tensor, sharding: Sharding) -> torch.Tensor:
    real: npt.NDArray[Any] = np.diff(cu_seqlens.cpu().numpy())
    if (
        cu_seqlens.shape != sharding.begins.shape
        or cu_seqlens[0]
        or (real < 0).any()
        or (real > sharding.lengths).any()
    ):
        raise ConfigurationError(
            f"cu_seqlens {tuple(cu_seqlens.shape)} must be sums of real lengths of the sharding's "
            f"{len(sharding.lengths)} documents, none longer than in the row; pass those of the "
            "batch that the sharding was made from"
        )
    return cu_seqlens.to(torch.int32)


def to_megatron_shard(
    batch: dict[str, Any],
    sharding: Sharding,
    rank: int,
    *,
    labels_shifted: bool = False,
    attend_padding: bool = True,
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
        attend_padding: as for `to_megatron`.
        own_attention: whether the model's attention follows `sharding`, as
            `evenstep.context_parallel.attention` does, so that any is accepted. False means
            Transformer Engine's.

    Raises:
        CollateError: as for `shard_batch` and `to_megatron`.
        ConfigurationError: there is no such rank, or without `own_attention` the sharding is not
            the one that Transformer Engine assumes.
    """
    if not own_attention:
        check_thd(sharding, "own_attention=True with evenstep.context_parallel.attention")
    shard = shard_batch(batch, sharding, rank, labels_shifted=labels_shifted)
    whole, parameters = to_megatron(
        batch,
        labels_shifted=labels_shifted,
        attend_padding=attend_padding,
        context_parallel_size=1 if own_attention else sharding.ranks,
    )
    positions = torch.from_numpy(sharding.indices(rank)).to(whole["tokens"].device)
    boundaries = ("cu_seqlens", "cu_seqlens_padded", "max_seqlen")
    fields = {
        name: shard[name] if name in shard and name not in boundaries else value
        for name, value in whole.items()
    }
    fields["tokens"] = shard["input_ids"]
    fields["labels"] = shard["shift_labels"]
    fields["loss_mask"] = whole["loss_mask"].index_select(1, positions)
    if sharding.ranks > 1 and fields["cu_seqlens_padded"] is None:
        fields["cu_seqlens_padded"] = fields["cu_seqlens"]
    return fields, parameters
