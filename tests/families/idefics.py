"""Idefics3 and SmolVLM: one row of tiles per sample, with a mask of real pixels.

What the processors return for one sample with k images and T tokens:

    input_ids, attention_mask   [1, T] int64
    pixel_values                [1, tiles of all k images, 3, side, side] float32
    pixel_attention_mask        [1, tiles of all k images, side, side] int64, 1 for real pixels

Alone among the families, these have one row per sample: [samples, most tiles, ...], padded with
zeros along their second dimension. A sample without images has a row of zeros if the group has an
image at all; without one, both fields are absent. The model leaves out tiles of zeros.
"""

from __future__ import annotations

from typing import Any

from transformers import (
    Idefics3Config,
    Idefics3ForConditionalGeneration,
    Idefics3ImageProcessorPil,
    Idefics3Processor,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    ProcessorMixin,
    SmolVLMConfig,
    SmolVLMForConditionalGeneration,
    SmolVLMImageProcessorPil,
    SmolVLMProcessor,
)
from transformers.models.smolvlm import processing_smolvlm
from transformers.video_processing_utils import BaseVideoProcessor

from families.collate import image_family, nested_images
from families.tiny import byte_tokenizer, seeded, text_sizes, vision_sizes

PATCH, SIDE, SHRINK = 8, 16, 2
"""A tile is 2 x 2 patches, which the connector joins to one token."""
SIZES = {"size": {"longest_edge": 2 * SIDE}, "max_image_size": {"longest_edge": SIDE}}
ANSWER = "Assistant: "
TEMPLATE = """\
{% for message in messages %}{{ message['role'] | capitalize }}: \
{% for part in message['content'] %}\
{% if part['type'] == 'image' %}<image>{% else %}{{ part['text'] }}{% endif %}\
{% endfor %}<end_of_utterance>
{% endfor %}{% if add_generation_prompt %}Assistant: {% endif %}"""


def idefics_tokenizer() -> PreTrainedTokenizerFast:
    places = [f"<row_{row}_col_{column}>" for row in (1, 2) for column in (1, 2)]
    return byte_tokenizer(
        "<global-img>",
        *places,
        image_token="<image>",
        fake_image_token="<fake_token_around_image>",
        end_of_utterance_token="<end_of_utterance>",
    )


def idefics3_processor() -> ProcessorMixin:
    return Idefics3Processor(
        image_processor=Idefics3ImageProcessorPil(**SIZES),
        tokenizer=idefics_tokenizer(),
        image_seq_len=(SIDE // PATCH // SHRINK) ** 2,
        chat_template=TEMPLATE,
    )


def smolvlm_processor() -> ProcessorMixin:
    # It refuses to be built without num2words, which spells the number of frames of a video.
    if processing_smolvlm.num2words is None:
        processing_smolvlm.num2words = str
    return SmolVLMProcessor(
        image_processor=SmolVLMImageProcessorPil(**SIZES),
        tokenizer=idefics_tokenizer(),
        video_processor=BaseVideoProcessor(),
        image_seq_len=(SIDE // PATCH // SHRINK) ** 2,
        chat_template=TEMPLATE,
    )


def _settings() -> dict[str, Any]:
    tokenizer = idefics_tokenizer()
    return {
        "vision_config": vision_sizes(SIDE, PATCH),
        "text_config": text_sizes(tokenizer, model_type="llama"),
        "image_token_id": tokenizer.image_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "scale_factor": SHRINK,
    }


def idefics3_model(seed: int) -> PreTrainedModel:
    config = Idefics3Config(**_settings())
    return seeded(lambda: Idefics3ForConditionalGeneration(config), seed)


def smolvlm_model(seed: int) -> PreTrainedModel:
    config = SmolVLMConfig(**_settings())
    return seeded(lambda: SmolVLMForConditionalGeneration(config), seed)


OPTIONS = {"tower": "model.vision_model.", "answer": ANSWER}
IDEFICS3 = image_family("Idefics3", idefics3_processor, idefics3_model, nested_images, **OPTIONS)
SMOLVLM = image_family("SmolVLM", smolvlm_processor, smolvlm_model, nested_images, **OPTIONS)
