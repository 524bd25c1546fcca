"""Pixtral and Mistral 3: one picture per image, each of its own size, and a token at the end of
each row of patches.

What their processor returns for one sample with k images and T tokens:

    input_ids, attention_mask   [1, T] int64
    pixel_values                [k, 3, height, width] float32, as large as the largest of the call
    image_sizes                 [k, 2] int64: height and width of the real part

``pixel_values`` are padded with zeros to the largest of the group, and joined along their first
dimension, as are ``image_sizes``. Without images neither is there.
"""

from __future__ import annotations

import sys
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from transformers import (
    LlavaConfig,
    LlavaForConditionalGeneration,
    Mistral3Config,
    Mistral3ForConditionalGeneration,
    PixtralImageProcessorPil,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    ProcessorMixin,
)

from families.collate import image_family, nested_images
from families.tiny import byte_tokenizer, chat_template, seeded, text_sizes, vision_sizes

_MODULE = "transformers.models.pixtral"
if find_spec("torchvision") is None:
    # Its processor takes a function from the image processor of torchvision, which that of PIL has.
    sys.modules[f"{_MODULE}.image_processing_pixtral"] = import_module(
        f"{_MODULE}.image_processing_pil_pixtral"
    )
PixtralProcessor: Any = import_module(f"{_MODULE}.processing_pixtral").PixtralProcessor

PATCH, SIDE = 8, 48


def pixtral_tokenizer() -> PreTrainedTokenizerFast:
    return byte_tokenizer("[IMG]", "[IMG_BREAK]", "[IMG_END]")


def pixtral_processor(merge: int) -> ProcessorMixin:
    found: ProcessorMixin = PixtralProcessor(
        image_processor=PixtralImageProcessorPil(
            size={"longest_edge": SIDE}, patch_size={"height": PATCH, "width": PATCH}
        ),
        tokenizer=pixtral_tokenizer(),
        patch_size=PATCH,
        spatial_merge_size=merge,
        chat_template=chat_template(image="[IMG]"),
    )
    return found


def _settings(merge: int) -> dict[str, Any]:
    tokenizer = pixtral_tokenizer()
    side = -(-SIDE // (PATCH * merge)) * PATCH * merge
    return {
        "vision_config": vision_sizes(side, PATCH, model_type="pixtral"),
        "text_config": text_sizes(tokenizer, model_type="mistral", sliding_window=None),
        "image_token_index": tokenizer.convert_tokens_to_ids("[IMG]"),
        "vision_feature_layer": -1,
    }


def pixtral_model(seed: int) -> PreTrainedModel:
    config = LlavaConfig(**_settings(1), vision_feature_select_strategy="full")
    return seeded(lambda: LlavaForConditionalGeneration(config), seed)


def mistral3_model(seed: int) -> PreTrainedModel:
    config = Mistral3Config(**_settings(2), spatial_merge_size=2)
    return seeded(lambda: Mistral3ForConditionalGeneration(config), seed)


TOWER = {"tower": "model.vision_tower."}
PIXTRAL = image_family(
    "Pixtral", partial(pixtral_processor, 1), pixtral_model, nested_images, **TOWER
)
MISTRAL3 = image_family(
    "Mistral 3", partial(pixtral_processor, 2), mistral3_model, nested_images, **TOWER
)
