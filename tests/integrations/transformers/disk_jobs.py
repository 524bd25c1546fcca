"""What projects with a command read from disk, and a callback that tells what they did.

The checkpoint is a tiny Qwen2-VL with random weights and its real processor, of the release of
transformers that is there. Row `n` has none, one or two images.
"""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import torch.distributed as dist
import transformers
from tiny_trainer import Seen, Witness, losses
from vision_trainer import check_updates, identities, rows_in

from families.media import image_row
from families.tiny import WIDTH, byte_tokenizer, chat_template, seeded, text_sizes

COUNT = 41
FIVE = transformers.__version__ >= "5"
LOGGED = ("padding", "imbalance", "composition", "tokens", "tokens_per_step")
PATCH = 8
SIZE = {"shortest_edge": (2 * PATCH) ** 2, "longest_edge": (6 * PATCH) ** 2}
TOKENS = {
    "image_token": "<|image_pad|>",
    "video_token": "<|video_pad|>",
    "vision_start_token": "<|vision_start|>",
    "vision_end_token": "<|vision_end|>",
}


def write_checkpoint(folder: Path) -> None:
    """What `from_pretrained` of the model and of `AutoProcessor` reads."""
    tokenizer = byte_tokenizer(**TOKENS)
    if not FIVE:  # its Qwen2VLProcessor takes no tokenizer of another class
        tokenizer = transformers.Qwen2TokenizerFast(
            tokenizer_object=tokenizer.backend_tokenizer,
            pad_token=tokenizer.pad_token,
            eos_token=tokenizer.eos_token,
            extra_special_tokens=TOKENS,
        )
    pixels = {"min_pixels": SIZE["shortest_edge"], "max_pixels": SIZE["longest_edge"]}
    transformers.Qwen2VLProcessor(
        image_processor=transformers.Qwen2VLImageProcessor(
            patch_size=PATCH, size=SIZE, **({} if FIVE else pixels)
        ),
        tokenizer=tokenizer,
        video_processor=transformers.Qwen2VLVideoProcessor(patch_size=PATCH),
        chat_template=chat_template(image="<|vision_start|><|image_pad|><|vision_end|>"),
    ).save_pretrained(folder)
    rope: dict[str, Any] = {"rope_type": "default", "mrope_section": [2, 3, 3]}
    rope = {"rope_parameters": {**rope, "rope_theta": 1e3}} if FIVE else {"rope_scaling": rope}
    config = transformers.Qwen2VLConfig(
        vision_config={
            "depth": 2,
            "hidden_size": WIDTH,
            "embed_dim": WIDTH,
            "num_heads": 2,
            "mlp_ratio": 2,
            "patch_size": PATCH,
        },
        text_config=text_sizes(tokenizer, **rope),
        **{f"{name}_id": tokenizer.convert_tokens_to_ids(token) for name, token in TOKENS.items()},
    )
    model = seeded(lambda: transformers.Qwen2VLForConditionalGeneration(config), 0)
    model.save_pretrained(folder)


def written_row(number: int, folder: Path) -> tuple[str, str, list[str]]:
    """Question and answer of a row, and the files of its images."""
    row = image_row(number)
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for i, picture in enumerate(row["images"]):
        files.append(str(folder / f"{number}_{i}.png"))
        picture.save(files[-1])
    question, answer = (message["content"][-1]["text"] for message in row["messages"])
    return question, answer, files


def check_once(ranks: list[Any]) -> None:
    """Every row once.

    Args:
        ranks: reports of a job, by rank.
    """
    rows = [n for one in ranks for update in one["updates"] for n in update]
    assert sorted(rows) == list(range(COUNT))


class Reporter(Witness):
    """Reports on which rows of this rank each update was, in order, and its loss. Where the
    learning rate is 0, it also checks that every row was there once, and that updates are those of
    one batch."""

    def __init__(self, trainer: Any, folder: str, stop: int | None) -> None:
        super().__init__(Seen())
        self.trainer = trainer
        self.folder = Path(folder)
        self.stop = stop
        self.rows = [trainer.train_dataset[number] for number in range(len(trainer.train_dataset))]
        self.known = identities(trainer.data_collator, self.rows)
        assert "pixel_values" in trainer.data_collator([dict(row) for row in self.rows])
        trainer.model.register_forward_pre_hook(self.note, with_kwargs=True)

    def note(self, model: Any, args: Any, inputs: Any) -> None:
        if model.training:
            self.seen.samples[-1] += rows_in(inputs, self.known)

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        super().on_step_end(args, state, control)
        if state.global_step == self.stop:
            os.kill(os.getpid(), signal.SIGKILL)

    def on_train_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        updates = self.seen.samples[:-1]  # the last one has not begun
        if args.learning_rate < 1e-9:
            check_updates(self.trainer, self.seen, self.trainer.data_collator, self.rows)
        report = {
            "updates": updates,
            "losses": losses(self.trainer)[-len(updates) :],
            "epoch": state.epoch,
            "late": getattr(self.trainer.even.batches.loader.collate_fn, "late", None),
            "logged": [state.log_history[0][name] for name in LOGGED],
        }
        rank = dist.get_rank() if dist.is_initialized() else 0
        (self.folder / f"{rank}.json").write_text(json.dumps(report))
