"""A tiny random Llama whose words are numbers, and its tokenizer, which other examples share."""

from __future__ import annotations

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

NUMBERS = 30


def numbers_tokenizer(padding_side: str = "right") -> PreTrainedTokenizerFast:
    words = ["<pad>", "<eos>", *map(str, range(NUMBERS))]
    made = Tokenizer(models.WordLevel({word: n for n, word in enumerate(words)}, "<pad>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="<pad>", eos_token="<eos>", padding_side=padding_side
    )


def tiny_llama() -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=NUMBERS + 2,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        pad_token_id=0,
        eos_token_id=1,
    )
    return LlamaForCausalLM(config)
