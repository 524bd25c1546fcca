"""Hugging Face's Trainer on two ranks, with batches of a token budget instead of a batch size.

    torchrun --nproc-per-node 2 examples/transformers_trainer.py

Run it again, with other numbers of ranks too, and it goes on from the last checkpoint. The only
evenstep lines are the import and `install`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

import evenstep
from evenstep.integrations import transformers as even

VOCABULARY = 256


class Documents(torch.utils.data.Dataset):
    """Sequences of very uneven length, the first third of each masked like a prompt."""

    def __init__(self, count: int) -> None:
        generator = torch.Generator().manual_seed(0)
        self.lengths = torch.empty(count).log_normal_(3.5, 0.9, generator=generator).long() + 2

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        length = int(self.lengths[index].clamp(max=512))
        tokens = torch.arange(index, index + length) % VOCABULARY
        labels = tokens.clone()
        labels[: 1 + length // 3] = -100
        return {"input_ids": tokens, "labels": labels}


def main(folder: str = "out/transformers_trainer") -> None:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
    )
    trainer = Trainer(
        model=LlamaForCausalLM(config),
        args=TrainingArguments(
            output_dir=folder,
            use_cpu=not torch.cuda.is_available(),
            num_train_epochs=2,
            gradient_accumulation_steps=2,
            learning_rate=3e-3,
            logging_steps=5,
            save_steps=10,
            report_to=[],
        ),
        train_dataset=Documents(1000),
        data_collator=evenstep.PadCollator(),
    )
    trainer = even.install(trainer, policy=evenstep.Even(max_tokens=4096))
    trainer.train(resume_from_checkpoint=any(Path(folder).glob("checkpoint-*")))


if __name__ == "__main__":
    main(*sys.argv[1:])
