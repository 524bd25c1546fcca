"""Qwen2-VL, Qwen2.5-VL and Qwen3-VL: images as rows of patches, with a grid per image.

What the processors return for one sample with k images and T tokens:

    input_ids, attention_mask   [1, T] int64
    mm_token_type_ids           [1, T] int64: 0 text, 1 image, 2 video; also without images
    pixel_values                [patches of all k images, 3 * 2 * patch * patch] float32
    image_grid_thw              [k, 3] int64: 1, rows and columns of patches

and for its v videos

    pixel_values_videos         [patches of all v videos, 3 * 2 * patch * patch] float32
    video_grid_thw              [v, 3] int64: pairs of frames, rows and columns of patches
    second_per_grid_ts          [v] float32; of Qwen2.5-VL alone

Token-long fields are padded: ``mm_token_type_ids`` with 0. The others are joined along their first
dimension in order of the samples, and absent without images or videos.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from transformers import (
    BatchFeature,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    ProcessorMixin,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2_5_VLProcessor,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
    Qwen2VLImageProcessorPil,
    Qwen2VLProcessor,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
    Qwen3VLProcessor,
)
from transformers.video_processing_utils import BaseVideoProcessor
from transformers.video_utils import VideoMetadata

from families import Family
from families.collate import ChatCollate, flat_images, image_family
from families.media import frames, image, messages
from families.tiny import (
    CHAT_ANSWER,
    WIDTH,
    byte_tokenizer,
    chat_template,
    seeded,
    text_sizes,
)

PATCH = 8
SIZE = {"shortest_edge": (2 * PATCH) ** 2, "longest_edge": (6 * PATCH) ** 2}
"""From 1 to 9 tokens an image."""
TEMPLATE = chat_template(
    image="<|vision_start|><|image_pad|><|vision_end|>",
    video="<|vision_start|><|video_pad|><|vision_end|>",
)


def qwen_tokenizer() -> PreTrainedTokenizerFast:
    return byte_tokenizer(
        image_token="<|image_pad|>",
        video_token="<|video_pad|>",
        vision_start_token="<|vision_start|>",
        vision_end_token="<|vision_end|>",
    )


def image_processor() -> Qwen2VLImageProcessorPil:
    return Qwen2VLImageProcessorPil(patch_size=PATCH, size=SIZE)


def processor(kind: type[ProcessorMixin], videos: Any = BaseVideoProcessor) -> ProcessorMixin:
    return kind(
        image_processor=image_processor(),
        tokenizer=qwen_tokenizer(),
        video_processor=videos(),
        chat_template=TEMPLATE,
    )


def _tokens_and_text(**rope: bool) -> dict[str, object]:
    tokenizer = qwen_tokenizer()
    names = ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id")
    rope_parameters = {
        "rope_type": "default",
        "rope_theta": 1000.0,
        "mrope_section": [2, 3, 3],
        **rope,
    }
    text = text_sizes(tokenizer, rope_parameters=rope_parameters)
    return {"text_config": text, **{name: getattr(tokenizer, name) for name in names}}


def _vision(**more: object) -> dict[str, object]:
    return {"depth": 2, "hidden_size": WIDTH, "num_heads": 2, "patch_size": PATCH, **more}


def qwen2_vl_model(seed: int) -> PreTrainedModel:
    vision = _vision(embed_dim=WIDTH, mlp_ratio=2)
    config = Qwen2VLConfig(vision_config=vision, **_tokens_and_text())
    return seeded(lambda: Qwen2VLForConditionalGeneration(config), seed)


def qwen2_5_vl_model(seed: int) -> PreTrainedModel:
    vision = _vision(
        out_hidden_size=WIDTH,
        intermediate_size=48,
        window_size=4 * PATCH,  # one layer looks at windows, one at the whole image
        fullatt_block_indexes=[1],
        tokens_per_second=2,
    )
    config = Qwen2_5_VLConfig(vision_config=vision, **_tokens_and_text())
    return seeded(lambda: Qwen2_5_VLForConditionalGeneration(config), seed)


def qwen3_vl_model(seed: int) -> PreTrainedModel:
    vision = _vision(
        out_hidden_size=WIDTH,
        intermediate_size=48,
        num_position_embeddings=36,
        deepstack_visual_indexes=[0],
    )
    config = Qwen3VLConfig(vision_config=vision, **_tokens_and_text(mrope_interleaved=True))
    return seeded(lambda: Qwen3VLForConditionalGeneration(config), seed)


def _family(
    name: str, kind: type[ProcessorMixin], model: Callable[[int], PreTrainedModel]
) -> Family:
    return image_family(name, partial(processor, kind), model, flat_images, tower="model.visual.")


QWEN2_VL = _family("Qwen2-VL", Qwen2VLProcessor, qwen2_vl_model)
QWEN2_5_VL = _family("Qwen2.5-VL", Qwen2_5_VLProcessor, qwen2_5_vl_model)
QWEN3_VL = _family("Qwen3-VL", Qwen3VLProcessor, qwen3_vl_model)


FRAMES_PER_SECOND = 2.0


class PilVideoProcessor(BaseVideoProcessor):
    """Videos uint8 [frames, height, width, 3] -> patches and grids of every second frame, made
    by the image processor: that of transformers needs torchvision."""

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


VIDEO_PROCESSOR = partial(processor, Qwen2_5_VLProcessor, PilVideoProcessor)
QWEN2_5_VL_VIDEO = Family(
    name="Qwen2.5-VL video",
    processor=VIDEO_PROCESSOR,
    model=qwen2_5_vl_model,
    row=video_row,
    collate=ChatCollate(VIDEO_PROCESSOR, CHAT_ANSWER, images_and_videos),
    tower="model.visual.",
)
