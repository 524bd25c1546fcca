"""Hugging Face's Trainer on two ranks, with batches of a token budget instead of a batch size.

    torchrun --nproc-per-node 2 examples/transformers_trainer.py

Run it again, with other numbers of ranks too, and it resumes from the last checkpoint. The only
evenstep lines are the import and `install`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments
from uneven import VOCABULARY, Documents

import evenstep
from evenstep.integrations import transformers as even


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
            learning_rate=3e-3,
            logging_steps=5,
            save_steps=10,
            report_to=[],
        ),
        train_dataset=Documents(1000),
        data_collator=evenstep.PadCollator(),
    )
    trainer = even.install(trainer, policy=evenstep.Even(max_tokens=4096), update_tokens=8192)
    trainer.train(resume_from_checkpoint=any(Path(folder).glob("checkpoint-*")))


if __name__ == "__main__":
    main(*sys.argv[1:])

# {'loss': '4.903', ... 'padding': '0.07732', 'imbalance': '1.007', 'composition': '0.9418', ...}
# {'loss': '1.864', ... 'padding': '0.07168', 'imbalance': '1.043', 'composition': '0.898', ...}
