"""Tiny models: the sizes that all families share, and weights that make gradients large. And
tokenizers and chat templates that need no network: a token is a byte, or a special token."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
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


PAD, END = "<|endoftext|>", "<|im_end|>"
CHAT_ANSWER = "<|im_start|>assistant\n"
CHAT_TEMPLATE = """\
{% for message in messages %}<|im_start|>{{ message['role'] }}
{% for part in message['content'] %}\
{% if part['type'] in media %}{{ media[part['type']] }}{% else %}{{ part['text'] }}{% endif %}\
{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


def chat_template(**media: str) -> str:
    """The template of ChatML: `media` maps the type of a message's part to what stands for it."""
    return "{% set media = " + repr(media) + " %}" + CHAT_TEMPLATE


def byte_tokenizer(*special: str, **named: str) -> PreTrainedTokenizerFast:
    """A tokenizer without merges. Token 0 pads; the special tokens follow, then the 256 bytes.

    `named` tokens become attributes, as in the tokenizers of multimodal checkpoints:
    ``image_token="<image>"`` adds ``tokenizer.image_token`` and ``tokenizer.image_token_id``.
    """
    names = list(dict.fromkeys([PAD, "<|im_start|>", END, *special, *named.values()]))
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: number for number, token in enumerate([*names, *letters])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(names)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=PAD, eos_token=END, extra_special_tokens=named
    )
