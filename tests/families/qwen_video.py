"""Qwen2.5-VL with videos: patches and a grid per video, and the seconds between its frames.

What the processor returns for one sample with v videos, beside what `families.qwen_vl` has:

    pixel_values_videos         [patches of all v videos, 3 * 2 * patch * patch] float32
    video_grid_thw              [v, 3] int64: pairs of frames, rows and columns of patches
    second_per_grid_ts          [v] float32

All three are joined along their first dimension, and absent without videos; a sample may have
images and videos, or either, or neither. Alone, a sample with one video has ``second_per_grid_ts``
of shape [1], which still counts videos and not samples.

transformers 5.24 has a video processor only where torchvision is installed. `PilVideoProcessor`
makes the same patches of the image processor's steps, in the order of
``Qwen2VLVideoProcessor.patchify``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from transformers import BatchFeature, ProcessorMixin
from transformers.image_utils import SizeDict
from transformers.video_processing_utils import BaseVideoProcessor
from transformers.video_utils import VideoMetadata

from families.collate import ChatCollate
from families.family import Family
from families.media import frames, image, messages
from families.qwen_vl import (
    PATCH,
    SIZE,
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
        patches, grids = zip(*map(self.patches, videos))
        metadata = [
            VideoMetadata(
                total_num_frames=len(video),
                fps=FRAMES_PER_SECOND,
                frames_indices=list(range(len(video))),
            )
            for video in videos
        ]
        data = {
            "pixel_values_videos": torch.cat(patches),
            "video_grid_thw": torch.tensor(grids),
            "video_metadata": metadata,
        }
        return BatchFeature(data)

    def patches(self, video: np.ndarray) -> tuple[torch.Tensor, list[int]]:
        """One video -> its patches [patches, values] and their numbers in time, down and across."""
        steps, merge, times = image_processor(), self.merge_size, self.temporal_patch_size
        sizes = SizeDict(**SIZE)
        resized = [
            steps.resize(frame.transpose(2, 0, 1), size=sizes, resample=3, factor=PATCH * merge)
            for frame in video
        ]
        scaled = [
            steps.normalize(steps.rescale(frame, 1 / 255), steps.image_mean, steps.image_std)
            for frame in resized
        ]
        pixels = torch.from_numpy(np.stack(scaled)).float()
        count, channels, height, width = pixels.shape
        grid = [count // times, height // PATCH, width // PATCH]
        down, across = grid[1] // merge, grid[2] // merge
        blocks = pixels.reshape(
            grid[0], times, channels, down, merge, PATCH, across, merge, PATCH
        ).permute(0, 3, 6, 4, 7, 2, 1, 5, 8)
        return blocks.reshape(grid[0] * grid[1] * grid[2], -1), grid


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
