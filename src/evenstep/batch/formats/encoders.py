"""A packed row for an encoder of transformers, whose tokens attend in both directions.

These models have no way of finding documents themselves: they are told by a mask over all pairs of
tokens. And each kind numbers positions from its own beginning.
"""

from __future__ import annotations

from typing import Any

import torch

from evenstep.batch.formats.packed import PackedRow
from evenstep.batch.labels import IGNORE_INDEX

_FROM_0 = (
    *("albert", "bert", "distilbert", "electra", "ernie", "eurobert", "jina_embeddings_v3"),
    *("megatron-bert", "modernbert", "nomic_bert", "rembert", "squeezebert"),
)
_FROM_PADDING = (
    *("camembert", "data2vec-text", "ibert", "mpnet", "roberta", "roberta-prelayernorm"),
    "xlm-roberta",
)
"""Their first position is that behind the id of padding."""


def is_encoder(config: Any) -> bool:
    """Whether a model's configuration is of an encoder that is known here."""
    kind = getattr(config, "model_type", None)
    return kind in (*_FROM_0, *_FROM_PADDING) and not getattr(config, "is_decoder", False)


def encoder_form(packed: PackedRow, config: Any) -> dict[str, Any]:
    """Keyword arguments for the model: ``input_ids`` and ``position_ids``, int64 [1, T];
    ``attention_mask`` float32 [1, 1, T, T], 0 where a token attends and -inf elsewhere, or one for
    each kind of layer; ``labels``, unless the samples have none; and all other fields."""
    real = _real(packed)
    positions = packed.position_ids
    if bool((positions[0, packed.bounds[:-1].long()] == 0).all()):  # counted by `PackCollator`
        first = config.pad_token_id + 1 if config.model_type in _FROM_PADDING else 0
        positions = positions * real + first  # padding may have more than the model has
    form = {
        **packed.rest,
        "input_ids": packed.input_ids,
        "position_ids": positions,
        "attention_mask": _masks(packed, real, config),
    }
    if not _are_made(packed, real):
        form["labels"] = packed.labels
    return form


def _are_made(packed: PackedRow, real: torch.Tensor) -> bool:
    """Whether the labels are those that `PackCollator` makes of samples without any: all tokens but
    the first of each document."""
    same = packed.labels == packed.input_ids
    first = packed.bounds[:-1].long()
    supervised = packed.labels != IGNORE_INDEX
    same[0, first] = ~supervised[0, first]
    return bool((same | ~real).all() & supervised.any())


def _real(packed: PackedRow) -> torch.Tensor:
    """bool [1, T]: which tokens are not padding."""
    begins = packed.bounds[:-1].long()
    lengths = packed.cu_seqlens.diff().long()
    places = torch.arange(packed.input_ids.shape[1], device=begins.device)
    documents = packed.document_ids[0].long()
    return (places < (begins + lengths)[documents])[None]


def _masks(packed: PackedRow, real: torch.Tensor, config: Any) -> Any:
    documents = packed.document_ids[0]
    itself = torch.eye(len(documents), dtype=torch.bool, device=documents.device)
    attends = (documents[:, None] == documents) & (real | itself)
    whole = _added(attends)
    if "sliding_attention" not in (getattr(config, "layer_types", None) or ()):
        return whole
    places = torch.arange(len(documents), device=documents.device)
    near = (places[:, None] - places).abs() <= config.sliding_window
    return {"full_attention": whole, "sliding_attention": _added(attends & near)}


def _added(attends: torch.Tensor) -> torch.Tensor:
    """What is added to attention scores, which every implementation takes."""
    none = torch.zeros(attends.shape, device=attends.device)
    return none.masked_fill_(~attends, float("-inf"))[None, None]
