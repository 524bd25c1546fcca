"""Tiny models: the sizes that all families share, and weights that make gradients large."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

WIDTH = 32


def text_sizes(tokenizer: PreTrainedTokenizerFast, **more: Any) -> dict[str, Any]:
    """The settings of a language model of two layers for this vocabulary."""
    return {
        "vocab_size": len(tokenizer),
        "hidden_size": WIDTH,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        **more,
    }


def vision_sizes(side: int, patch: int, **more: Any) -> dict[str, Any]:
    """The settings of a vision tower of two layers for images of `side` pixels."""
    return {
        "hidden_size": WIDTH,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "image_size": side,
        "patch_size": patch,
        **more,
    }


def seeded(build: Callable[[], PreTrainedModel], seed: int) -> PreTrainedModel:
    """The model in training mode, with weights drawn from `seed`.

    Checkpoints start from weights so small that a tiny model barely looks at its images. Ten times
    larger ones make what one token or tile does to the gradients far larger than rounding.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = build()
        for parameter in model.parameters():
            # Norms keep what they have: their weights are around 1, their biases 0.
            if parameter.ndim > 1:
                parameter.data.normal_(0, 0.2)
            elif not parameter.any():
                parameter.data.normal_(0, 0.02)
    return model.train()
