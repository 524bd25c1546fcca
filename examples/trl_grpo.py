"""TRL's GRPO on two ranks, with rollouts balanced over them before each update.

    torchrun --nproc-per-node 2 examples/trl_grpo.py

A tiny random Llama learns to answer in even numbers: the reward is a rule. Its answers have from 1
to 64 tokens. The only evenstep lines are the import and `balance_rollouts`. It needs trl.
"""

from __future__ import annotations

import random
import sys
from typing import Any

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer

from evenstep.integrations import transformers as even

NUMBERS = 30


def numbers_tokenizer() -> PreTrainedTokenizerFast:
    words = ["<pad>", "<eos>", *map(str, range(NUMBERS))]
    made = Tokenizer(models.WordLevel({word: n for n, word in enumerate(words)}, "<pad>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="<pad>", eos_token="<eos>", padding_side="left"
    )


def share_of_even_numbers(completions: list[str], **_: Any) -> list[float]:
    answers = [[int(word) for word in text.split() if word.isdigit()] for text in completions]
    return [sum(n % 2 == 0 for n in answer) / max(1, len(answer)) for answer in answers]


def main(folder: str = "out/trl_grpo") -> None:
    torch.manual_seed(0)
    draw = random.Random(0)
    numbers = [[str(draw.randrange(NUMBERS)) for _ in range(1 + n % 8)] for n in range(96)]
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=NUMBERS + 2,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            pad_token_id=0,
            eos_token_id=1,
        )
    )
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=share_of_even_numbers,
        args=GRPOConfig(
            output_dir=folder,
            use_cpu=not torch.cuda.is_available(),
            bf16=torch.cuda.is_available(),
            per_device_train_batch_size=8,
            gradient_accumulation_steps=2,
            num_generations=8,
            max_completion_length=64,
            learning_rate=1e-2,
            num_train_epochs=1,
            logging_steps=2,
            report_to=[],
        ),
        train_dataset=Dataset.from_dict({"prompt": list(map(" ".join, numbers))}),
        processing_class=numbers_tokenizer(),
    )
    trainer = even.balance_rollouts(trainer, max_tokens=8 * (8 + 64))
    trainer.train()


if __name__ == "__main__":
    main(*sys.argv[1:])
