"""The forms that the train loops of Megatron-LM and of torchtitan take.

Megatron-LM has the fields of its `get_batch`, and its `PackedSeqParams`. It predicts ``labels[t]``
from ``tokens[:t + 1]`` without shifting, and weights each by ``loss_mask[t]``.

torchtitan has `(input_dict, labels)`, labels shifted. It finds documents by their positions alone:
one begins wherever a position is 0. From positions it makes the masks of its FlexAttention and
variable-length attention.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch

from evenstep.batch.formats.packed import PackedRow, begins_at, read_packed
from evenstep.batch.labels import IGNORE_INDEX
from evenstep.errors import CollateError


def to_megatron(
    batch: dict[str, Any],
    *,
    labels_shifted: bool = False,
    context_parallel_size: int = 1,
) -> tuple[dict[str, Any], Any]:
    """Fields for a GPT model of Megatron-LM, and the parameters of its attention over documents.

    The fields are those that a data iterator yields to ``pretrain_gpt.py``: ``tokens``, ``labels``
    and ``position_ids`` int64 [1, T], ``loss_mask`` float32 [1, T], ``attention_mask`` None,
    ``cu_seqlens`` and ``cu_seqlens_padded`` int32 [1, n + 1] (the latter None where padding was
    not asked for), ``max_seqlen`` int32 [1]. Other fields go with them.

    Args:
        batch: of ``PackCollator()``.
        labels_shifted: the dataset has shifted the labels (``mask_first_label=False``).
        context_parallel_size: ranks that share the row, for the check of its divisibility.

    Returns:
        The fields; and a ``PackedSeqParams`` (``qkv_format`` "thd", ``cu_seqlens_q`` and ``_kv``,
        the same ``_padded``, which are None where nothing is padded and there is no context
        parallelism, ``max_seqlen_q`` and ``_kv``) where Megatron-LM can be imported, a
        dictionary of its keyword arguments where not.

    Raises:
        CollateError: not such a batch, labels that contradict `labels_shifted`, or documents that
            cannot be cut into two chunks per context-parallel rank.
    """
    packed = read_packed(batch)
    ranks, chunks = context_parallel_size, 2 * context_parallel_size
    if ranks > 1 and bool((packed.bounds % chunks != 0).any()):
        raise CollateError(
            f"context_parallel_size={ranks} cuts every document into {chunks} chunks, and some "
            f"have other lengths; use PackCollator(pad_documents_to_multiple_of={chunks})"
        )
    labels = packed.next_labels(labels_shifted)
    padded = packed.cu_seqlens_padded
    fields = {
        **packed.rest,
        "tokens": packed.input_ids,
        "labels": labels,
        "loss_mask": (labels != IGNORE_INDEX).to(torch.float32),
        "position_ids": packed.position_ids,
        "attention_mask": None,
        "cu_seqlens": packed.cu_seqlens[None],
        "cu_seqlens_padded": None if padded is None else padded[None],
        "max_seqlen": torch.tensor(
            [packed.max_seqlen], dtype=torch.int32, device=packed.input_ids.device
        ),
    }
    return fields, _attention_parameters(packed, context_parallel_size > 1)


def _attention_parameters(packed: PackedRow, context_parallel: bool) -> Any:
    """See what `to_megatron` returns. The padding of a document counts as its last tokens, which no
    real token sees, as in ``pretrain_gpt.py``: every attention kernel can do that."""
    bounds = packed.bounds
    # Transformer Engine's context parallelism requires these, padded or not.
    room = bounds if context_parallel else packed.cu_seqlens_padded
    parameters: dict[str, Any] = {
        "qkv_format": "thd",
        "cu_seqlens_q": bounds,
        "cu_seqlens_kv": bounds,
        "cu_seqlens_q_padded": room,
        "cu_seqlens_kv_padded": room,
        "max_seqlen_q": packed.max_seqlen,
        "max_seqlen_kv": packed.max_seqlen,
    }
    try:
        return import_module("megatron.core.packed_seq_params").PackedSeqParams(**parameters)
    except ImportError:
        return parameters


def to_torchtitan(
    batch: dict[str, Any], *, labels_shifted: bool = False
) -> tuple[dict[str, Any], torch.Tensor]:
    """What a torchtitan data loader yields.

    ``{"input": ids, "positions": positions}`` and labels, int64 [1, T]; -100 where nothing is
    predicted. Other fields join the dictionary, whose entries all become arguments of the model.
    torchtitan divides by the labels of all ranks itself: no `loss_scale` here.

    Args:
        batch: of ``PackCollator()``.
        labels_shifted: the dataset has shifted the labels (``mask_first_label=False``).

    Raises:
        CollateError: not such a batch, labels that contradict `labels_shifted`, or the samples'
            own positions if they are not 0 exactly where a document begins.
    """
    packed = read_packed(batch)
    if not torch.equal(packed.position_ids == 0, begins_at(packed.bounds, packed.input_ids)):
        raise CollateError(
            "the samples' own position_ids are not 0 exactly where a document begins, which is "
            "how torchtitan finds documents; leave position_ids out in the dataset"
        )
    inputs = {"input": packed.input_ids, "positions": packed.position_ids, **packed.rest}
    return inputs, packed.next_labels(labels_shifted)
