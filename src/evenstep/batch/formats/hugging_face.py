"""The form of Hugging Face's models: what their `DataCollatorWithFlattening` gives.

`rope_positions` gives the positions of one sample in models that place image tokens in time and
space. Models of the Qwen-VL kind give each token three positions: time, height and width. In a
padded batch they compute them themselves. In a packed row each sample needs its own, from 0, so
they are computed sample by sample, by the model class's own public method `get_rope_index`. That
needs the configuration and no weights, so it runs in the batcher.

Tokens of encoders attend in both directions, and these models find no documents themselves, so
packed rows are refused for them.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Mapping, MutableMapping
from functools import cache
from typing import Any

import torch
from torch import Tensor

from evenstep.batch.columns import copies_tokens
from evenstep.batch.count_media import VISION_GRIDS
from evenstep.batch.formats.packed import PackedRow, check_apart, read_packed
from evenstep.errors import CollateError

logger = logging.getLogger("evenstep")


def to_hugging_face(
    batch: dict[str, Any], *, model: Any = None, seq_idx: bool = False, use_cache: bool = False
) -> dict[str, Any]:
    """Keyword arguments for a causal model of transformers.

    ``input_ids``, ``labels`` (the model shifts them) and ``position_ids``, int64 [1, T];
    ``cu_seq_lens_q`` and ``cu_seq_lens_k`` int32 [n + 1], boundaries that count padding, and
    ``max_length_q`` and ``max_length_k`` int: as ``return_flash_attn_kwargs=True`` of that class.
    Other fields go with them.

    Models with FlashAttention read the boundaries. With "sdpa" and "eager", transformers separates
    documents by ``position_ids``, but only without an attention mask and without a cache of keys.
    Its models keep a cache by default, and then every token silently sees the documents before its
    own. Hence ``use_cache=False`` among the arguments.

    Args:
        batch: of ``PackCollator()``.
        model: the model, or its configuration. None is a causal language model.
        seq_idx: add int32 [1, T] ``seq_idx``, the document of each token, which models with
            state-space layers read: as ``return_seq_idx=True``.
        use_cache: True leaves ``use_cache`` out, for models that do not take it.

    Raises:
        CollateError: not such a batch, labels that are shifted already or are not for such a
            model, positions that do not show where
            documents begin, or are not the model's, or a kind of model that is not known.
    """
    packed = read_packed(batch)
    config = getattr(model, "config", model)
    _check_for_causal(packed, model, config)
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


def _check_for_causal(packed: PackedRow, model: Any, config: Any) -> None:
    """Raises a `CollateError` for a row that a causal model would read in another way."""
    _check_causal(config)
    if _places_images(packed.rest, config) and packed.position_ids.ndim == 2:
        raise CollateError(
            f"{_PLACES}. Pack with collate_fn=PreparingCollator(collate_fn=PadCollator(), "
            "config=model.config), or use packed=False"
        )
    # So do all losses that do not say otherwise.
    if getattr(model, "loss_type", None) not in ("ForTokenClassification", "ForMaskedLM"):
        packed.check_aligned(
            "causal language models of transformers shift labels themselves, so return them "
            "unshifted from the dataset; or pass model=model, if its loss does not shift them"
        )
    if model is None and not copies_tokens(packed.labels, packed.input_ids):
        raise CollateError(
            "the labels are no copy of the tokens, as those of causal language models are; call "
            "evenstep.batch.to_hugging_face(batch, model=model), or use packed=False"
        )
    check_apart(packed.position_ids, packed.bounds)


def leave_cache_out(batch: Any, *, packed: bool, first: bool = False) -> None:
    """Makes ``model(**batch)`` right for causal models: a row of documents that are told apart by
    their positions gets ``use_cache=False``.

    Args:
        batch: what a collate function made. Changed in place.
        packed: a row is of several documents.
        first: warn if the batch is not for causal models.

    Raises:
        CollateError: positions do not show where documents begin.
    """
    if not packed or not isinstance(batch, MutableMapping) or "position_ids" not in batch:
        return
    tokens: Any = batch.get("input_ids")
    one_row = isinstance(tokens, Tensor) and tokens.shape[:1] == (1,)
    if not one_row or batch.get("attention_mask") is not None:
        return
    batch.setdefault("use_cache", False)
    if "document_ids" not in batch:  # not of `PackCollator`
        return
    check_apart(batch["position_ids"], batch.get("cu_seqlens_padded", batch["cu_seqlens"]))
    labels = batch["labels"]
    if first and _places_images(batch, None):
        logger.warning("%s: see evenstep.batch.to_hugging_face(batch, model=model)", _PLACES)
    if first and labels.shape == tokens.shape and not copies_tokens(labels, tokens):
        logger.warning(
            "the labels of packed rows are no copy of their tokens; call the model with "
            "evenstep.batch.to_hugging_face(batch, model=model), which refuses one of transformers "
            "that would let documents see each other"
        )


_PLACES = (
    "models of the Qwen-VL kind place tokens in time and space, and these packed rows, also those "
    "without images, have the positions of text"
)


def _places_images(fields: Mapping[str, Any], config: Any) -> bool:
    """Whether a model has positions of its own; by the fields, where it is not known."""
    if config is None:
        return any(name in fields for name in ("mm_token_type_ids", *VISION_GRIDS))
    return _shell(config.__class__) is not None


def _check_causal(config: Any) -> None:
    """
    Raises:
        CollateError: a configuration of a model whose attention is not causal, or unknown.
    """
    if config is None:
        return
    from transformers import (
        MODEL_FOR_CAUSAL_LM_MAPPING,
        MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
        MODEL_FOR_MASKED_LM_MAPPING,
        MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING,
    )

    kind = type(config)
    causal = any(
        kind in models
        for models in (
            MODEL_FOR_CAUSAL_LM_MAPPING,
            MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
            MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING,
        )
    )
    if kind in MODEL_FOR_MASKED_LM_MAPPING:
        causal = getattr(config, "is_decoder", False)
    bidirectional = (  # such as the encoder-decoders of the third kind
        getattr(config, "is_encoder_decoder", False)
        or getattr(config, "use_bidirectional_attention", False)
        or not getattr(config, "is_causal", True)
    )
    if bidirectional or not causal:
        name = getattr(config, "model_type", kind.__name__)
        raise CollateError(
            f"in packed rows of a model of kind {name!r} documents might see each other; use "
            "packed=False, or make the model's arguments of batch['cu_seqlens'] yourself"
        )


def rope_positions(config: Any, sample: Mapping[str, Any]) -> torch.Tensor | None:
    """The positions of one sample, by the rule of a model of transformers.

    Args:
        config: the model's configuration.

    Returns:
        int64 [4, length]: the position in the text, then time, height and width, as such models
        take them; None for a model that has text positions only.
    """
    shell = _shell(config.__class__)
    if shell is None:
        return None
    shell.config = config
    taken = inspect.signature(shell.get_rope_index).parameters
    fields = {name: sample[name] for name in taken if sample.get(name) is not None}
    fields.pop("attention_mask", None)
    for name in ("input_ids", "mm_token_type_ids"):
        if name in fields:
            fields[name] = fields[name][None]
    positions, _ = shell.get_rope_index(**fields)
    text = torch.arange(positions.shape[2], dtype=positions.dtype)
    return torch.cat([text[None], positions[:, 0]])


@cache
def _shell(kind: type) -> Any:
    """An empty module of the model class that goes with a configuration; None where its positions
    are those of text. Its `get_rope_index` reads the configuration alone."""
    from transformers import MODEL_MAPPING

    model: Any = MODEL_MAPPING.get(kind, None)
    if not hasattr(model, "get_rope_index"):
        return None
    shell = model.__new__(model)
    torch.nn.Module.__init__(shell)
    return shell
