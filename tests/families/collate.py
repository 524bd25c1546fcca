"""What users write to collate rows: chat template, processor, and labels for the answer alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from transformers import PreTrainedModel, ProcessorMixin
from transformers.video_processing_utils import BaseVideoProcessor

from families import Family
from families.media import image_row
from families.tiny import CHAT_ANSWER

_check = ProcessorMixin.check_argument_for_proper_class


def _check_all_but_videos(self: ProcessorMixin, name: str, argument: Any) -> Any:
    """Without torchvision, transformers 5.24 has no video processors, and its processors fail as
    they look for the class of theirs, whatever the argument. All else of them works."""
    return BaseVideoProcessor if name == "video_processor" else _check(self, name, argument)


ProcessorMixin.check_argument_for_proper_class = _check_all_but_videos


class ChatCollate:
    """Rows -> what the processor returns, and ``labels``.

    Labels are the tokens of the answer and the token that ends it; the prompt, the placeholders of
    media, and padding have -100.
    """

    def __init__(
        self,
        processor: Callable[[], ProcessorMixin],
        answer: str,
        gather: Callable[[Sequence[Mapping[str, Any]]], dict[str, Any]],
    ) -> None:
        self.processor = processor()
        self.gather = gather
        """Rows -> the media for the processor's call, by argument; none without media."""
        self.answer = self.processor.tokenizer(answer, add_special_tokens=False)["input_ids"]

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        chats = [row["messages"] for row in rows]
        text = [self.processor.apply_chat_template(chat, tokenize=False) for chat in chats]
        media = self.gather(rows)
        batch = dict(self.processor(text=text, padding=True, return_tensors="pt", **media))
        batch["labels"] = self.labels(batch["input_ids"], batch["attention_mask"])
        return batch

    def labels(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        header = torch.tensor(self.answer)
        labels = input_ids.masked_fill(attention_mask == 0, -100)
        for row in labels:
            starts = (row.unfold(0, len(header), 1) == header).all(1).nonzero()
            row[: starts[-1, 0] + len(header)] = -100
        return labels


def flat_images(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """All images of the group in one list, for processors that count placeholders."""
    images = [image for row in rows for image in row["images"]]
    return {"images": images} if images else {}


def nested_images(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One list per row, for processors that want to know whose images they are."""
    images = [list(row["images"]) for row in rows]
    return {"images": images} if any(images) else {}


def image_family(
    name: str,
    build: Callable[[], ProcessorMixin],
    model: Callable[[int], PreTrainedModel],
    gather: Callable[..., dict[str, Any]],
    *,
    tower: str,
    answer: str = CHAT_ANSWER,
    padding_side: str = "right",
) -> Family:
    """A family whose rows have images.

    Args:
        gather: as for `ChatCollate`.
        answer: what begins an answer in the chat template.
    """
    return Family(
        name=name,
        processor=build,
        model=model,
        row=image_row,
        collate=ChatCollate(build, answer, gather),
        tower=tower,
        padding_side=padding_side,
    )
