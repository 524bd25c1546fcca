"""Gemma 3: one square per image, and image tokens that look at each other in both directions.
InternVL: all tiles of all images in one row, and padding on the left. PaliGemma: one square in each
row, and a prefix whose tokens look at each other.

What the processor of Gemma 3 returns for one sample with k images and T tokens:

    input_ids, attention_mask   [1, T] int64
    token_type_ids              [1, T] int64: 1 for the tokens of an image; also without images
    pixel_values                [k, 3, side, side] float32; with pan and scan also the crops

``token_type_ids`` are padded with 0. ``pixel_values`` are joined along their first dimension, and
absent without images.

Without ``token_type_ids`` the model trains, too, but the tokens of an image see no later ones.

The processor of InternVL has no ``token_type_ids``, and in ``pixel_values`` the tiles of all
images. How many an image has stands in no field: it follows from the number of its placeholders.
It pads on the left unless its call or its tokenizer says otherwise.

The processor of PaliGemma wants an image in every row. It makes ``labels``, and in
``token_type_ids`` 0 for the prefix, image included, and 1 for the suffix, which is the answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tokenizers.processors import TemplateProcessing
from transformers import (
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    Gemma3ImageProcessorPil,
    Gemma3Processor,
    GotOcr2ImageProcessorPil,
    InternVLConfig,
    InternVLForConditionalGeneration,
    InternVLProcessor,
    PaliGemmaConfig,
    PaliGemmaForConditionalGeneration,
    PaliGemmaProcessor,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    ProcessorMixin,
    SiglipImageProcessorPil,
)
from transformers.video_processing_utils import BaseVideoProcessor

from families import Family
from families.collate import flat_images, image_family, nested_images
from families.media import image
from families.tiny import WIDTH, byte_tokenizer, chat_template, seeded, text_sizes, vision_sizes

PATCH, SIDE, IMAGE_TOKENS = 8, 32, 4
TILE_TOKENS = (SIDE // PATCH // 2) ** 2
ANSWER = "<start_of_turn>model\n"
TEMPLATE = """\
{% for message in messages %}{% set role = 'model' if message['role'] == 'assistant' else 'user' %}\
<start_of_turn>{{ role }}
{% for part in message['content'] %}\
{% if part['type'] == 'image' %}<start_of_image>{% else %}{{ part['text'] }}{% endif %}\
{% endfor %}<end_of_turn>
{% endfor %}{% if add_generation_prompt %}<start_of_turn>model
{% endif %}"""


def gemma_tokenizer() -> PreTrainedTokenizerFast:
    return byte_tokenizer(
        "<start_of_turn>",
        "<end_of_turn>",
        image_token="<image_soft_token>",
        boi_token="<start_of_image>",
        eoi_token="<end_of_image>",
    )


def gemma3_processor() -> ProcessorMixin:
    return Gemma3Processor(
        image_processor=Gemma3ImageProcessorPil(size={"height": SIDE, "width": SIDE}),
        tokenizer=gemma_tokenizer(),
        image_seq_length=IMAGE_TOKENS,
        chat_template=TEMPLATE,
    )


def gemma3_model(seed: int) -> PreTrainedModel:
    tokenizer = gemma_tokenizer()
    kinds = ["sliding_attention", "full_attention"]
    config = Gemma3Config(
        vision_config=vision_sizes(SIDE, PATCH, vision_use_head=False),
        text_config=text_sizes(tokenizer, layer_types=kinds, sliding_window=48),
        mm_tokens_per_image=IMAGE_TOKENS,
        image_token_index=tokenizer.image_token_id,
        boi_token_index=tokenizer.boi_token_id,
        eoi_token_index=tokenizer.eoi_token_id,
    )
    return seeded(lambda: Gemma3ForConditionalGeneration(config), seed)


GEMMA3 = image_family(
    "Gemma 3",
    gemma3_processor,
    gemma3_model,
    nested_images,
    tower="model.vision_tower.",
    answer=ANSWER,
)


def internvl_tokenizer() -> PreTrainedTokenizerFast:
    return byte_tokenizer(
        start_image_token="<img>",
        end_image_token="</img>",
        context_image_token="<IMG_CONTEXT>",
        video_token="<video>",
    )


def internvl_processor() -> ProcessorMixin:
    return InternVLProcessor(
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


def paligemma_tokenizer() -> PreTrainedTokenizerFast:
    tokenizer = byte_tokenizer(image_token="<image>")
    tokenizer.bos_token = "<|im_start|>"
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single="$A", pair="$A $B:1")
    return tokenizer


def paligemma_processor() -> ProcessorMixin:
    images = SiglipImageProcessorPil(size={"height": SIDE, "width": SIDE})
    images.image_seq_length = (SIDE // PATCH) ** 2
    return PaliGemmaProcessor(images, paligemma_tokenizer())


def paligemma_model(seed: int) -> PreTrainedModel:
    tokenizer = paligemma_processor().tokenizer
    config = PaliGemmaConfig(
        vision_config=vision_sizes(SIDE, PATCH, vision_use_head=False),
        text_config=text_sizes(tokenizer, model_type="gemma"),
        image_token_index=tokenizer.image_token_id,
        projection_dim=WIDTH,
    )
    return seeded(lambda: PaliGemmaForConditionalGeneration(config), seed)


def paligemma_row(number: int, images: int = 1) -> dict[str, Any]:
    """A row with one image, a prefix and a suffix."""
    if images != 1:
        raise ValueError(f"images={images}: a row of PaliGemma has one image")
    suffix = "very " * (number * 5 % 7) + "good"
    return {"id": number, "image": image(number), "prefix": f"what is {number}?", "suffix": suffix}


class PrefixCollate:
    """Rows -> what the processor makes of them, as its examples call it."""

    def __init__(self) -> None:
        self.processor = paligemma_processor()

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        made = self.processor(
            images=[[row["image"]] for row in rows],
            text=["<image>" + row["prefix"] for row in rows],
            suffix=[row["suffix"] for row in rows],
            padding=True,
            return_tensors="pt",
        )
        return dict(made)


PALIGEMMA = Family(
    name="PaliGemma",
    processor=paligemma_processor,
    model=paligemma_model,
    row=paligemma_row,
    collate=PrefixCollate(),
    tower="model.vision_tower.",
    always_media=True,
)
