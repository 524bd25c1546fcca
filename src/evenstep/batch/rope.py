"""`rope_positions`: those of a sample in models that place image tokens in time and space.

Models of the Qwen-VL kind give each token three positions: time, height and width. In a padded
batch they find them out by themselves. In a packed row each sample needs its own, from 0, so they
are computed sample by sample, by the model class's own public method `get_rope_index`. That needs
the configuration and no weights, so it runs in the batcher.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch

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
