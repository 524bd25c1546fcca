"""Supervised fine-tuning of a vision-language model on images and messages, with Hugging Face's
Trainer on two ranks, and batches of a token budget instead of a batch size.

    torchrun --nproc-per-node 2 examples/vision_sft.py
    torchrun --nproc-per-node 2 examples/vision_sft.py OUT Qwen/Qwen2.5-VL-3B-Instruct FILE.parquet

The first trains a tiny Qwen2-VL on photographs: see photographs.py beside this file. The second
loads a checkpoint, and rows with columns ``images`` and ``messages``.

The only evenstep lines are the import and `install`: it calls the collate function on each row
alone, in worker processes, and forms batches once it knows how many tokens a row has become.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForImageTextToText, AutoProcessor, Trainer, TrainingArguments

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


def load(name: str | None, file: str | None) -> tuple[Any, Any, Any]:
    """Model, processor and rows."""
    if name is None:
        import photographs

        processor = photographs.processor()
        return photographs.model(processor), processor, photographs.Crops()
    import datasets

    rows = datasets.load_dataset("parquet", data_files=file, split="train")
    return (
        AutoModelForImageTextToText.from_pretrained(name),
        AutoProcessor.from_pretrained(name),
        rows,
    )


def main(folder: str = "out/vision_sft", name: str | None = None, file: str | None = None) -> None:
    torch.manual_seed(0)
    model, processor, rows = load(name, file)
    trainer = Trainer(
        model=model,
        args=TrainingArguments(
            output_dir=folder,
            use_cpu=not torch.cuda.is_available(),
            num_train_epochs=1,
            gradient_accumulation_steps=2,
            learning_rate=2e-3 if name is None else 1e-5,
            logging_steps=2,
            save_steps=10,
            dataloader_num_workers=1,
            remove_unused_columns=False,  # the collate function needs them
            ddp_find_unused_parameters=False,
            report_to=[],
        ),
        train_dataset=rows,
        data_collator=Collate(processor),
    )
    trainer = even.install(trainer, policy=evenstep.Even(max_tokens=2048))
    trainer.train(resume_from_checkpoint=any(Path(folder).glob("checkpoint-*")))


if __name__ == "__main__":
    main(*sys.argv[1:])
