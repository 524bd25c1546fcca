"""Qwen2.5-VL with videos: patches and a grid per video, and the seconds between its frames.

What the processor returns for one sample with v videos, beside what `families.qwen_vl` has:

    pixel_values_videos         [patches of all v videos, 3 * 2 * patch * patch] float32
    video_grid_thw              [v, 3] int64: pairs of frames, rows and columns of patches
    second_per_grid_ts          [v] float32

All three are joined along their first dimension, and absent without videos; a sample may have
images and videos, or either, or neither. Alone, a sample with one video has ``second_per_grid_ts``
of shape [1], which still counts videos and not samples.

transformers 5.24 has a video processor only where torchvision is installed. `PilVideoProcessor`
makes patches in the same order by the image processor, of every second frame.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from transformers import BatchFeature, ProcessorMixin
from transformers.video_processing_utils import BaseVideoProcessor
from transformers.video_utils import VideoMetadata

from families.collate import ChatCollate
from families.family import Family
from families.media import frames, image, messages
from families.qwen_vl import (
    TEMPLATE,
    TorchvisionFreeQwen25VL,
    image_processor,
    qwen2_5_vl_model,
    qwen_tokenizer,
)
from families.text import CHAT_ANSWER

FRAMES_PER_SECOND = 2.0


class PilVideoProcessor(BaseVideoProcessor):
    """Videos uint8 [frames, height, width, 3] -> patches and grids, without torchvision."""

    merge_size, temporal_patch_size = 2, 2

    def __call__(self, videos: Sequence[np.ndarray], **options: Any) -> BatchFeature:
        steps = image_processor()
        made = [steps(images=list(video[::2]), return_tensors="pt") for video in videos]
        grids = [each["image_grid_thw"] for each in made]
        metadata = [
            VideoMetadata(
                total_num_frames=len(video),
                fps=FRAMES_PER_SECOND,
                frames_indices=list(range(len(video))),
            )
            for video in videos
        ]
        data = {
            "pixel_values_videos": torch.cat([each["pixel_values"] for each in made]),
            "video_grid_thw": torch.tensor([[len(grid), *grid[0, 1:]] for grid in grids]),
            "video_metadata": metadata,
        }
        return BatchFeature(data)


def video_processor() -> ProcessorMixin:
    return TorchvisionFreeQwen25VL(
        image_processor=image_processor(),
        tokenizer=qwen_tokenizer(),
        video_processor=PilVideoProcessor(),
        chat_template=TEMPLATE,
    )


def video_row(number: int, images: int | None = None) -> dict[str, Any]:
    """A row without media, with a video, or with an image and a video, by turns."""
    count = number % 3 if images is None else images
    kinds = [[], ["video"], ["image", "video"]][count]
    return {
        "id": number,
        "images": [image(number)] * kinds.count("image"),
        "videos": [frames(number, 2 + 2 * (number % 2))] * kinds.count("video"),
        "messages": messages(number, kinds),
    }


def images_and_videos(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """All images and all videos of the group, each in one list."""
    media = {name: [item for row in rows for item in row[name]] for name in ("images", "videos")}
    return {name: items for name, items in media.items() if items}


QWEN2_5_VL_VIDEO = Family(
    name="Qwen2.5-VL video",
    processor=video_processor,
    model=qwen2_5_vl_model,
    row=video_row,
    collate=ChatCollate(video_processor, CHAT_ANSWER, images_and_videos),
    tower="model.visual.",
)
