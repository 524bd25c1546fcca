"""The form of Hugging Face's models: what their `DataCollatorWithFlattening` gives.

`rope_positions` gives the positions of one sample in models that place image tokens in time and
space. Models of the Qwen-VL kind give each token three positions: time, height and width. In a
padded batch they compute them themselves. In a packed row each sample needs its own, from 0, so
they are computed sample by sample, by the model class's own public method `get_rope_index`. That
needs the configuration and no weights, so it runs in the batcher.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch

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


_shells: dict[type, Any] = {}


def rope_positions(config: Any, sample: Mapping[str, Any]) -> torch.Tensor | None:
    """The positions of one sample, by the rule of a model of transformers.

    Args:
        config: the model's configuration.

    Returns:
        int64 [4, length]: the position in the text, then time, height and width, as such models
        take them; None for a model that has text positions only.
    """
    shell = _shell(type(config))
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


def _shell(kind: type) -> Any:
    """An empty module of the model class that goes with a configuration; None where its positions
    are those of text. Its `get_rope_index` reads the configuration alone."""
    if kind not in _shells:
        from transformers import MODEL_MAPPING

        model = MODEL_MAPPING.get(kind, None)
        _shells[kind] = None
        if hasattr(model, "get_rope_index"):
            _shells[kind] = model.__new__(model)
            torch.nn.Module.__init__(_shells[kind])
    return _shells[kind]
