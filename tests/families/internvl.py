"""InternVL: all tiles of all images in one row, and padding on the left.

What the processor returns for one sample with k images and T tokens:

    input_ids, attention_mask   [1, T] int64
    pixel_values                [tiles of all k images, 3, side, side] float32

``pixel_values`` are joined along their first dimension, and absent without images. The number of
tiles of an image stands in no field: it follows from the number of its placeholders. This
processor pads on the left unless its call or its tokenizer says otherwise.
"""

from __future__ import annotations

from transformers import (
    GotOcr2ImageProcessorPil,
    InternVLConfig,
    InternVLForConditionalGeneration,
    InternVLProcessor,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    ProcessorMixin,
)
from transformers.video_processing_utils import BaseVideoProcessor

from families.collate import flat_images, image_family
from families.text import byte_tokenizer, chat_template
from families.tiny import seeded, text_sizes, vision_sizes
from families.video import AnyVideoProcessor

PATCH, SIDE = 8, 32
TILE_TOKENS = (SIDE // PATCH // 2) ** 2


class TorchvisionFreeInternVL(AnyVideoProcessor, InternVLProcessor):
    """The processor as it is, without the check of its video processor."""


def internvl_tokenizer() -> PreTrainedTokenizerFast:
    return byte_tokenizer(
        start_image_token="<img>",
        end_image_token="</img>",
        context_image_token="<IMG_CONTEXT>",
        video_token="<video>",
    )


def internvl_processor() -> ProcessorMixin:
    return TorchvisionFreeInternVL(
        image_processor=GotOcr2ImageProcessorPil(
            size={"height": SIDE, "width": SIDE}, min_patches=1, max_patches=4
        ),
        tokenizer=internvl_tokenizer(),
        video_processor=BaseVideoProcessor(),
        image_seq_length=TILE_TOKENS,
        chat_template=chat_template(image="<IMG_CONTEXT>"),
    )


def internvl_model(seed: int) -> PreTrainedModel:
    tokenizer = internvl_tokenizer()
    config = InternVLConfig(
        vision_config=vision_sizes(SIDE, PATCH),
        text_config=text_sizes(tokenizer, model_type="qwen2"),
        image_token_id=tokenizer.context_image_token_id,
        image_seq_length=TILE_TOKENS,
    )
    return seeded(lambda: InternVLForConditionalGeneration(config), seed)


INTERNVL = image_family(
    "InternVL",
    internvl_processor,
    internvl_model,
    flat_images,
    tower="model.vision_tower.",
    padding_side="left",
)
