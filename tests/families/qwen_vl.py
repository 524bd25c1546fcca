"""Qwen2-VL, Qwen2.5-VL and Qwen3-VL: images as rows of patches, with a grid per image.

What the processors return for one sample with k images and T tokens:

    input_ids, attention_mask   [1, T] int64
    mm_token_type_ids           [1, T] int64: 0 text, 1 image, 2 video; also without images
    pixel_values                [patches of all k images, 3 * 2 * patch * patch] float32
    image_grid_thw              [k, 3] int64: 1, rows and columns of patches

Token-long fields are padded: ``mm_token_type_ids`` with 0. ``pixel_values`` and ``image_grid_thw``
are joined along their first dimension in order of the samples; without images they are absent.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from transformers import (
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

from families.collate import flat_images, image_family
from families.family import Family
from families.text import byte_tokenizer, chat_template
from families.tiny import WIDTH, seeded, text_sizes
from families.video import AnyVideoProcessor

PATCH = 8
SIZE = {"shortest_edge": (2 * PATCH) ** 2, "longest_edge": (6 * PATCH) ** 2}
"""From 1 to 9 tokens an image."""
TEMPLATE = chat_template(
    image="<|vision_start|><|image_pad|><|vision_end|>",
    video="<|vision_start|><|video_pad|><|vision_end|>",
)


class TorchvisionFreeQwen2VL(AnyVideoProcessor, Qwen2VLProcessor):
    """The processor as it is, without the check of its video processor."""


class TorchvisionFreeQwen25VL(AnyVideoProcessor, Qwen2_5_VLProcessor):
    """The processor as it is, without the check of its video processor."""


class TorchvisionFreeQwen3VL(AnyVideoProcessor, Qwen3VLProcessor):
    """The processor as it is, without the check of its video processor."""


def qwen_tokenizer() -> PreTrainedTokenizerFast:
    return byte_tokenizer(
        image_token="<|image_pad|>",
        video_token="<|video_pad|>",
        vision_start_token="<|vision_start|>",
        vision_end_token="<|vision_end|>",
    )


def image_processor() -> Qwen2VLImageProcessorPil:
    return Qwen2VLImageProcessorPil(patch_size=PATCH, size=SIZE)


def processor(kind: type[ProcessorMixin]) -> ProcessorMixin:
    return kind(
        image_processor=image_processor(),
        tokenizer=qwen_tokenizer(),
        video_processor=BaseVideoProcessor(),
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


QWEN2_VL = _family("Qwen2-VL", TorchvisionFreeQwen2VL, qwen2_vl_model)
QWEN2_5_VL = _family("Qwen2.5-VL", TorchvisionFreeQwen25VL, qwen2_5_vl_model)
QWEN3_VL = _family("Qwen3-VL", TorchvisionFreeQwen3VL, qwen3_vl_model)
