"""LLaVA-NeXT and LLaVA-OneVision: an image as a whole, and cut into tiles.

What the processors return for one sample with k images and T tokens:

    input_ids, attention_mask   [1, T] int64
    pixel_values                [k, tiles, 3, side, side] float32; an image with fewer tiles than
                                another one of the call has tiles of zeros behind its own
    image_sizes                 [k, 2] int64: height and width of the raw image

and from OneVision also

    batch_num_images            [1] int64: k

``pixel_values`` are padded to the most tiles of the group with zeros, along their second dimension,
and then joined along the first, as are ``image_sizes``. The models take from ``image_sizes`` how
many tiles are real. Without images none of these fields is there.

OneVision cuts an image into tiles only if it is alone in its sample, so the number of images of
each sample belongs to the batch. ``batch_num_images`` has one element per sample with images, in
order of the samples: it is joined along its first dimension, and samples without images add none.
Where the images of a sample are passed in a flat list, not in one of their own, it has k ones.
"""

from __future__ import annotations

from transformers import (
    LlavaNextConfig,
    LlavaNextForConditionalGeneration,
    LlavaNextImageProcessorPil,
    LlavaNextProcessor,
    LlavaOnevisionConfig,
    LlavaOnevisionForConditionalGeneration,
    LlavaOnevisionImageProcessorPil,
    LlavaOnevisionProcessor,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    ProcessorMixin,
)
from transformers.video_processing_utils import BaseVideoProcessor

from families.collate import flat_images, image_family, nested_images
from families.tiny import byte_tokenizer, chat_template, seeded, text_sizes, vision_sizes

PATCH, SIDE = 8, 16
"""A tile is 2 x 2 patches: 4 tokens."""
GRIDS = [[SIDE, 2 * SIDE], [2 * SIDE, SIDE], [2 * SIDE, 2 * SIDE]]
TEMPLATE = chat_template(image="<image>")
CLIP = vision_sizes(SIDE, PATCH, model_type="clip_vision_model")


def llava_tokenizer() -> PreTrainedTokenizerFast:
    return byte_tokenizer(image_token="<image>", video_token="<video>")


def next_processor() -> ProcessorMixin:
    return LlavaNextProcessor(
        image_processor=LlavaNextImageProcessorPil(
            size={"shortest_edge": SIDE},
            crop_size={"height": SIDE, "width": SIDE},
            image_grid_pinpoints=GRIDS,
        ),
        tokenizer=llava_tokenizer(),
        patch_size=PATCH,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,  # CLIP's class token, which "default" then leaves out
        chat_template=TEMPLATE,
    )


def onevision_processor() -> ProcessorMixin:
    return LlavaOnevisionProcessor(
        image_processor=LlavaOnevisionImageProcessorPil(
            size={"height": SIDE, "width": SIDE}, image_grid_pinpoints=[[SIDE, SIDE], *GRIDS]
        ),
        tokenizer=llava_tokenizer(),
        video_processor=BaseVideoProcessor(),
        num_image_tokens=(SIDE // PATCH) ** 2,
        vision_feature_select_strategy="full",
        chat_template=TEMPLATE,
    )


def next_model(seed: int) -> PreTrainedModel:
    tokenizer = llava_tokenizer()
    config = LlavaNextConfig(
        vision_config=CLIP,
        text_config=text_sizes(tokenizer, model_type="llama"),
        image_token_index=tokenizer.image_token_id,
        image_grid_pinpoints=GRIDS,
        vision_feature_layer=-2,
        vision_feature_select_strategy="default",
    )
    return seeded(lambda: LlavaNextForConditionalGeneration(config), seed)


def onevision_model(seed: int) -> PreTrainedModel:
    tokenizer = llava_tokenizer()
    siglip = {**CLIP, "model_type": "siglip_vision_model", "vision_use_head": False}
    config = LlavaOnevisionConfig(
        vision_config=siglip,
        text_config=text_sizes(tokenizer, model_type="qwen2"),
        image_token_index=tokenizer.image_token_id,
        video_token_index=tokenizer.video_token_id,
        image_grid_pinpoints=[[SIDE, SIDE], *GRIDS],
    )
    return seeded(lambda: LlavaOnevisionForConditionalGeneration(config), seed)


TOWER = "model.vision_tower."
LLAVA_NEXT = image_family("LLaVA-NeXT", next_processor, next_model, flat_images, tower=TOWER)
LLAVA_ONEVISION = image_family(
    "LLaVA-OneVision", onevision_processor, onevision_model, nested_images, tower=TOWER
)
