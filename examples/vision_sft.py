"""Supervised fine-tuning of a vision-language model on images and messages, with Hugging Face's
Trainer on two ranks, and batches of a token budget instead of a batch size.

    torchrun --nproc-per-node 2 examples/vision_sft.py

It trains a tiny Qwen2-VL on photographs: see photographs.py and tiny_qwen.py
beside this file. In their place take
``AutoModelForImageTextToText.from_pretrained``, ``AutoProcessor.from_pretrained`` of a checkpoint,
and any dataset of rows with ``images`` and ``messages``.

The only evenstep lines are the import and `install`: it calls the collate function on each row
alone, in worker processes, and forms batches once it knows how many tokens a row has become.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import tiny_qwen
import torch
from photographs import Crops
from transformers import Trainer, TrainingArguments

import evenstep
from evenstep.integrations import transformers as even


class Collate:
    """Rows -> tokens, pixels, and labels for the last answer alone."""

    def __init__(self, processor: Any) -> None:
        self.processor = processor

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        template, tokenizer = self.processor.apply_chat_template, self.processor.tokenizer
        texts = [template(row["messages"]) for row in rows]
        images = [image for row in rows for image in row["images"]] or None
        batch = dict(self.processor(text=texts, images=images, padding=True, return_tensors="pt"))
        batch["labels"] = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
        for row, text, labels in zip(rows, texts, batch["labels"]):
            question = template(row["messages"][:-1], add_generation_prompt=True)
            answer = tokenizer(text.removeprefix(question), add_special_tokens=False)["input_ids"]
            labels[: int((labels >= 0).nonzero()[-1]) + 1 - len(answer)] = -100
        return batch


def main(folder: str = "out/vision_sft") -> None:
    torch.manual_seed(0)
    processor = tiny_qwen.processor()
    trainer = Trainer(
        model=tiny_qwen.model(processor),
        args=TrainingArguments(
            output_dir=folder,
            use_cpu=not torch.cuda.is_available(),
            num_train_epochs=1,
            gradient_accumulation_steps=2,
            learning_rate=2e-3,
            logging_steps=2,
            save_steps=10,
            dataloader_num_workers=1,
            remove_unused_columns=False,  # the collate function needs them
            ddp_find_unused_parameters=False,
            report_to=[],
        ),
        train_dataset=Crops(),
        data_collator=Collate(processor),
    )
    trainer = even.install(trainer, policy=evenstep.Even(max_tokens=2048))
    trainer.train(resume_from_checkpoint=any(Path(folder).glob("checkpoint-*")))


if __name__ == "__main__":
    main(*sys.argv[1:])

# {'loss': '5.274', ... 'padding': '0.1329', 'imbalance': '1.003', ...}
