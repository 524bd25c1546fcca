"""The form of Hugging Face's models: what their `DataCollatorWithFlattening` gives."""

from __future__ import annotations

from typing import Any

from evenstep.batch.formats.packed import read_packed


def to_hugging_face(
    batch: dict[str, Any], *, seq_idx: bool = False, use_cache: bool = False
) -> dict[str, Any]:
    """Keyword arguments for a causal language model of transformers.

    ``input_ids``, ``labels`` (the model shifts them) and ``position_ids``, int64 [1, T];
    ``cu_seq_lens_q`` and ``cu_seq_lens_k`` int32 [n + 1], boundaries that count padding, and
    ``max_length_q`` and ``max_length_k`` int: as ``return_flash_attn_kwargs=True`` of that class.
    Other fields go with them; a ``loss_mask``, which the labels imply, does not.

    Models with FlashAttention read the boundaries. With "sdpa" and "eager", transformers separates
    documents by ``position_ids``, but only without an attention mask and without a cache of keys.
    Its models keep a cache by default, and then every token silently sees the documents before its
    own. Hence ``use_cache=False`` among the arguments.

    Args:
        batch: of ``PackCollator()``.
        seq_idx: add int32 [1, T] ``seq_idx``, the document of each token, which models with
            state-space layers read: as ``return_seq_idx=True``.
        use_cache: True leaves ``use_cache`` out, for models that do not take it.

    Raises:
        CollateError: not such a batch, labels that are shifted already, or a loss mask that says
            more than the labels.
    """
    packed = read_packed(batch)
    packed.check_loss_mask("the loss of transformers")
    packed.check_aligned(
        "models of transformers shift labels themselves, so return them unshifted from the dataset"
    )
    form = {
        **packed.rest,
        "input_ids": packed.input_ids,
        "labels": packed.labels,
        "position_ids": packed.position_ids,
        "cu_seq_lens_q": packed.bounds,
        "cu_seq_lens_k": packed.bounds,
        "max_length_q": packed.max_seqlen,
        "max_length_k": packed.max_seqlen,
    }
    if not use_cache:
        form["use_cache"] = False
    if seq_idx:
        form["seq_idx"] = packed.document_ids
    return form
