"""Two datasets in shares of 0.7 and 0.3 under Hugging Face's Trainer, without a service.

    torchrun --nproc-per-node 2 examples/mixture.py

Run it again, with other numbers of ranks too, and it resumes from the last checkpoint.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

import evenstep
from evenstep.integrations import transformers as even


def documents(count: int, first: int, longest: int) -> list[dict[str, torch.Tensor]]:
    lengths = [2 + 7919 * index % longest for index in range(count)]
    tokens = [torch.arange(first, first + length) % 256 for length in lengths]
    return [{"input_ids": each, "labels": each.clone()} for each in tokens]


def main(folder: str = "out/mixture") -> None:
    mixture = evenstep.Mixture(
        {"code": documents(400, 0, 300), "chat": documents(400, 128, 60)},
        weights={"code": 0.7, "chat": 0.3},
    )
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
    )
    trainer = Trainer(
        model=LlamaForCausalLM(config),
        args=TrainingArguments(
            output_dir=folder,
            use_cpu=not torch.cuda.is_available(),
            num_train_epochs=1,
            learning_rate=3e-3,
            logging_steps=5,
            save_steps=10,
            report_to=[],
        ),
        train_dataset=mixture,
        data_collator=evenstep.PadCollator(),
    )
    trainer = even.install(trainer, policy=evenstep.Even(max_tokens=4096), update_tokens=8192)
    trainer.train(resume_from_checkpoint=any(Path(folder).glob("checkpoint-*")))


if __name__ == "__main__":
    main(*sys.argv[1:])

# {'loss': '4.991', ... 'padding': '0.05122', 'imbalance': '1.002', 'composition': '0.9664', ...}
# {'loss': '4.13', ... 'padding': '0.06275', 'imbalance': '1.005', 'composition': '0.883', ...}
