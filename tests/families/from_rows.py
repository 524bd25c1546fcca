"""Mllama and MiniCPM-V: what their processors make of several rows is no joining of what they make
of each.

Mllama lays the images of a row side by side: fields are [rows, most images of a row, ...], and
``cross_attention_mask`` is [rows, tokens, images, tiles]. MiniCPM-V lays the patches of all images
one after the other along the last dimension of ``pixel_values`` [1, 3, patch, pixels].
"""

from __future__ import annotations

from transformers import (
    MiniCPMV4_6ImageProcessorPil,
    MiniCPMV4_6Processor,
    MllamaImageProcessorPil,
    MllamaProcessor,
    ProcessorMixin,
)
from transformers.video_processing_utils import BaseVideoProcessor

from families.collate import ChatCollate, flat_images, nested_images
from families.tiny import CHAT_ANSWER, byte_tokenizer, chat_template


def mllama_processor() -> ProcessorMixin:
    tokenizer = byte_tokenizer("<|python_tag|>", image_token="<|image|>")
    tokenizer.bos_token = "<|im_start|>"
    images = MllamaImageProcessorPil(size={"height": 16, "width": 16}, max_image_tiles=4)
    return MllamaProcessor(images, tokenizer, chat_template=chat_template(image="<|image|>"))


class VideoSettings(BaseVideoProcessor):
    slice_mode, downsample_mode = True, "16x"


def minicpm_processor() -> ProcessorMixin:
    marks = {
        f"{name}_{end}_token": f"<{name}_{end}>" for name in MARKED for end in ("start", "end")
    }
    return MiniCPMV4_6Processor(
        image_processor=MiniCPMV4_6ImageProcessorPil(
            patch_size=4, scale_resolution=32, max_slice_nums=4
        ),
        video_processor=VideoSettings(),
        tokenizer=byte_tokenizer(image_token="<|image|>", video_token="<|video|>", **marks),
        chat_template=chat_template(image="<|image|>"),
    )


MARKED = ("image", "slice", "image_id")
MLLAMA = ChatCollate(mllama_processor, CHAT_ANSWER, nested_images)
MINICPM = ChatCollate(minicpm_processor, CHAT_ANSWER, flat_images)
