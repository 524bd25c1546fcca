"""GLM-4V: what the processor returns is of the form of Qwen-VL's: see `families.qwen_vl`."""

from __future__ import annotations

from transformers import (
    Glm4vConfig,
    Glm4vForConditionalGeneration,
    Glm4vImageProcessorPil,
    Glm4vProcessor,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    ProcessorMixin,
)
from transformers.video_processing_utils import BaseVideoProcessor

from families.collate import flat_images, image_family
from families.tiny import WIDTH, byte_tokenizer, chat_template, seeded, text_sizes

PATCH = 8
SIZE = {"shortest_edge": 2 * (2 * PATCH) ** 2, "longest_edge": 2 * (6 * PATCH) ** 2}
"""Of two frames. From 1 to 9 tokens an image."""
MARKS = ("<|begin_of_image|>", "<|end_of_image|>", "<|begin_of_video|>", "<|end_of_video|>")


def glm_tokenizer() -> PreTrainedTokenizerFast:
    return byte_tokenizer(*MARKS, image_token="<|image|>", video_token="<|video|>")


def glm4v_processor() -> ProcessorMixin:
    return Glm4vProcessor(
        image_processor=Glm4vImageProcessorPil(patch_size=PATCH, size=SIZE),
        tokenizer=glm_tokenizer(),
        video_processor=BaseVideoProcessor(),
        chat_template=chat_template(image="<|begin_of_image|><|image|><|end_of_image|>"),
    )


def glm4v_model(seed: int) -> PreTrainedModel:
    tokenizer = glm_tokenizer()
    names = ("image_start_token_id", "image_end_token_id", "video_start_token_id")
    marks = dict(zip((*names, "video_end_token_id"), tokenizer.convert_tokens_to_ids([*MARKS])))
    rope = {"rope_type": "default", "rope_theta": 1000.0, "mrope_section": [2, 3, 3]}
    config = Glm4vConfig(
        vision_config={
            "depth": 2,
            "hidden_size": WIDTH,
            "num_heads": 2,
            "image_size": 6 * PATCH,
            "patch_size": PATCH,
            "out_hidden_size": WIDTH,
            "intermediate_size": 48,
        },
        text_config=text_sizes(tokenizer, rope_parameters=rope),
        image_token_id=tokenizer.image_token_id,
        video_token_id=tokenizer.video_token_id,
        **marks,
    )
    return seeded(lambda: Glm4vForConditionalGeneration(config), seed)


GLM4V = image_family("GLM-4V", glm4v_processor, glm4v_model, flat_images, tower="model.visual.")
