"""Something to train on without a download: questions about crops of photographs, and a tiny
Qwen2-VL with its processor.

Needs pip install scikit-image pillow 'transformers>=5'. Sizes of the crops are as uneven as those
of pictures on the web. A token is a byte, and a patch has 8 pixels instead of 14, so that pictures
which a CPU can train on have as many tokens as those of users have.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import skimage.data
from PIL import Image
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    PreTrainedTokenizerFast,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
    Qwen2VLImageProcessorPil,
    Qwen2VLProcessor,
)
from transformers.video_processing_utils import BaseVideoProcessor

SHOWN = {"astronaut": "an astronaut", "chelsea": "a cat", "coffee": "coffee", "rocket": "a rocket"}
"""Functions of `skimage.data`, and what they show."""
TOKENS = {
    "image_token": "<|image_pad|>",
    "video_token": "<|video_pad|>",
    "vision_start_token": "<|vision_start|>",
    "vision_end_token": "<|vision_end|>",
}
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% for part in message['content'] %}{% if part['type'] == 'image' %}"
    "<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


class Crops:
    """Rows with ``images`` and ``messages``; a row is drawn from its number."""

    def __len__(self) -> int:
        return 400

    def __getitem__(self, index: int) -> dict[str, Any]:
        random = np.random.default_rng(index)
        names = random.choice(list(SHOWN), random.geometric(0.7)).tolist()
        question = [{"type": "image"}] * len(names) + [{"type": "text", "text": "What is this?"}]
        answer = [{"type": "text", "text": "; ".join(SHOWN[name] for name in names)}]
        return {
            "images": [crop(name, random) for name in names],
            "messages": [
                {"role": "user", "content": question},
                {"role": "assistant", "content": answer},
            ],
        }


def crop(name: str, random: np.random.Generator) -> Image.Image:
    pixels = getattr(skimage.data, name)()
    side, shape = 72 * np.exp(0.7 * random.normal()), np.exp(0.3 * random.normal())
    sides = np.array([side / shape, side * shape]).clip(24)
    height, width = np.minimum(sides.astype(int), pixels.shape[:2])
    top, left = random.integers([pixels.shape[0] - height + 1, pixels.shape[1] - width + 1])
    return Image.fromarray(pixels[top : top + height, left : left + width])


class Processor(Qwen2VLProcessor):
    """Without a video processor, for which transformers wants torchvision."""

    def check_argument_for_proper_class(self, argument_name: str, argument: Any) -> Any:
        if argument_name == "video_processor":
            return BaseVideoProcessor
        return super().check_argument_for_proper_class(argument_name, argument)


def processor(*, patch: int = 8, max_pixels: int = 320 * 320) -> Processor:
    """Of which a token stands for 2 x 2 patches."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = Tokenizer(models.BPE(vocab={x: i for i, x in enumerate(letters)}, merges=[]))
    tokens.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    end, pad = "<|im_end|>", "<|endoftext|>"
    tokens.add_special_tokens([pad, "<|im_start|>", end, *TOKENS.values()])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=tokens, pad_token=pad, eos_token=end, extra_special_tokens=TOKENS
    )
    size = {"shortest_edge": (2 * patch) ** 2, "longest_edge": max_pixels}
    return Processor(
        image_processor=Qwen2VLImageProcessorPil(patch_size=patch, size=size),
        tokenizer=tokenizer,
        video_processor=BaseVideoProcessor(),
        chat_template=TEMPLATE,
    )


def model(processor: Processor) -> Qwen2VLForConditionalGeneration:
    """With 0.7 million random weights."""
    names, patch = processor.tokenizer, processor.image_processor.patch_size
    language = {
        "hidden_size": 128,
        "intermediate_size": 384,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "vocab_size": len(names),
        "use_cache": False,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [4, 6, 6]},
        "pad_token_id": names.pad_token_id,
        "bos_token_id": None,
        "eos_token_id": names.eos_token_id,
    }
    tower = {"depth": 2, "embed_dim": 64, "num_heads": 4, "hidden_size": 128, "patch_size": patch}
    ids = {f"{name}_id": names.convert_tokens_to_ids(token) for name, token in TOKENS.items()}
    config = Qwen2VLConfig(text_config=language, vision_config=tower, **ids)
    return Qwen2VLForConditionalGeneration(config)
