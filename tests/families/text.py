"""Tokenizers and chat templates that need no network: a token is a byte, or a special token."""

from __future__ import annotations

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

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
