"""Rows -> a batch: the collate function that a user of Qwen2-VL writes, and its real processor.

A token is a byte, and patches have 8 pixels instead of 14, so that crops of a size that a CPU can
train on have as many tokens as pictures of users have.
"""

from __future__ import annotations

from typing import Any

import torch

try:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import (
        PreTrainedTokenizerFast,
        Qwen2VLImageProcessorPil,
        Qwen2VLProcessor,
    )
    from transformers.video_processing_utils import BaseVideoProcessor
except ImportError as error:
    raise ImportError(
        "the demo needs transformers 5 and Pillow: pip install 'evenstep[demo-vision]'"
    ) from error

_PATCH, _MAX_PIXELS = 8, 320 * 320
NAMED = {
    "image_token": "<|image_pad|>",
    "video_token": "<|video_pad|>",
    "vision_start_token": "<|vision_start|>",
    "vision_end_token": "<|vision_end|>",
}
_START, _END, _PAD = "<|im_start|>", "<|im_end|>", "<|endoftext|>"
_ANSWER = f"{_START}assistant\n"
_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% for part in message['content'] %}{% if part['type'] == 'image' %}"
    "<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


class _Processor(Qwen2VLProcessor):
    """Without a video processor, for which transformers wants torchvision."""

    def check_argument_for_proper_class(self, argument_name: str, argument: Any) -> Any:
        if argument_name == "video_processor":
            return BaseVideoProcessor
        return super().check_argument_for_proper_class(argument_name, argument)


def _tokenizer() -> PreTrainedTokenizerFast:
    """A token for each byte, and the special tokens."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = Tokenizer(models.BPE(vocab={x: i for i, x in enumerate(letters)}, merges=[]))
    tokens.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokens.decoder = decoders.ByteLevel()
    tokens.add_special_tokens([_PAD, _START, _END, *NAMED.values()])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokens, pad_token=_PAD, eos_token=_END, extra_special_tokens=NAMED
    )


def processor(*, patch: int = _PATCH, max_pixels: int = _MAX_PIXELS) -> Qwen2VLProcessor:
    """
    Args:
        patch: pixels of a side of a patch; a token stands for 2 x 2 patches.
        max_pixels: larger images are made smaller.
    """
    size = {"shortest_edge": (2 * patch) ** 2, "longest_edge": max_pixels}
    return _Processor(
        image_processor=Qwen2VLImageProcessorPil(patch_size=patch, size=size),
        tokenizer=_tokenizer(),
        video_processor=BaseVideoProcessor(),
        chat_template=_TEMPLATE,
    )


class Collate:
    """Rows -> tokens, pixels, and labels for the answer alone."""

    def __init__(self, processor: Qwen2VLProcessor) -> None:
        self.processor = processor
        self.header = torch.tensor(processor.tokenizer(_ANSWER)["input_ids"])

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        texts = [self.processor.apply_chat_template(row["messages"]) for row in rows]
        images = [image for row in rows for image in row["images"]] or None
        batch = dict(self.processor(text=texts, images=images, padding=True, return_tensors="pt"))
        batch["labels"] = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
        for labels in batch["labels"]:
            (start,) = (labels.unfold(0, len(self.header), 1) == self.header).all(1).nonzero()
            labels[: int(start) + len(self.header)] = -100
        return batch
