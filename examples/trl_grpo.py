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
from tiny_llama import NUMBERS, numbers_tokenizer, tiny_llama
from trl import GRPOConfig, GRPOTrainer

from evenstep.integrations import transformers as even


def share_of_even_numbers(completions: list[str], **_: Any) -> list[float]:
    answers = [[int(word) for word in text.split() if word.isdigit()] for text in completions]
    return [sum(n % 2 == 0 for n in answer) / max(1, len(answer)) for answer in answers]


def main(folder: str = "out/trl_grpo") -> None:
    torch.manual_seed(0)
    draw = random.Random(0)
    numbers = [[str(draw.randrange(NUMBERS)) for _ in range(1 + n % 8)] for n in range(96)]
    trainer = GRPOTrainer(
        model=tiny_llama(),
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
        processing_class=numbers_tokenizer("left"),
    )
    trainer = even.balance_rollouts(trainer, max_tokens=8 * (8 + 64))
    trainer.train()


if __name__ == "__main__":
    main(*sys.argv[1:])

# {'loss': ... 'imbalance': '1.029', ... 'reward': '0.7708', ...}
# {'loss': ... 'imbalance': '1.01', ... 'reward': '0.9455', ...}
