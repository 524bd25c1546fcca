"""TRL's DPO on two ranks, with batches of a token budget instead of a batch size.

    torchrun --nproc-per-node 2 examples/trl_dpo.py

A tiny random Llama learns to prefer even numbers to odd ones, in answers of very uneven length. The
only evenstep lines are the imports and `install`. It needs trl.
"""

from __future__ import annotations

import random
import sys

import torch
from datasets import Dataset
from tiny_llama import NUMBERS, numbers_tokenizer, tiny_llama
from trl import DPOConfig, DPOTrainer

import evenstep
from evenstep.integrations import transformers as even


def pairs(count: int) -> Dataset:
    draw = random.Random(0)

    def numbers(first: int) -> str:
        length = min(64, 1 + int(draw.lognormvariate(2.0, 0.9)))
        return " ".join(str(draw.randrange(first, NUMBERS, 2)) for _ in range(length))

    asked = [f"{draw.randrange(NUMBERS)} " for _ in range(count)]
    rows = [{"prompt": each, "chosen": numbers(0), "rejected": numbers(1)} for each in asked]
    return Dataset.from_list(rows)


def main(folder: str = "out/trl_dpo") -> None:
    torch.manual_seed(0)
    model, reference = tiny_llama(), tiny_llama()
    reference.load_state_dict(model.state_dict())
    trainer = DPOTrainer(
        model=model,
        ref_model=reference,
        args=DPOConfig(
            output_dir=folder,
            use_cpu=not torch.cuda.is_available(),
            bf16=torch.cuda.is_available(),
            num_train_epochs=1,
            learning_rate=3e-3,
            logging_steps=2,
            report_to=[],
        ),
        train_dataset=pairs(400),
        processing_class=numbers_tokenizer(),
    )
    trainer = even.install(trainer, policy=evenstep.Even(max_tokens=1024))
    trainer.train()


if __name__ == "__main__":
    main(*sys.argv[1:])

# {'loss': '0.6713', ... 'rewards/accuracies': '0.4808', ... 'epoch': '0.1575'}
# {'loss': '0.389', ... 'rewards/accuracies': '1', ... 'epoch': '0.805'}
