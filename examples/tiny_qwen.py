"""A tiny Qwen2-VL with its processor, to train without a download.

Needs pip install pillow 'transformers>=5'. A token is a byte, and a patch has 8 pixels instead of
14, so that pictures which a CPU can train on have as many tokens as those of users have.
"""

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    PreTrainedTokenizerFast,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
    Qwen2VLImageProcessorPil,
    Qwen2VLProcessor,
)
from transformers.video_processing_utils import BaseVideoProcessor

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


class Processor(Qwen2VLProcessor):
    """Without a video processor, for which transformers wants torchvision."""

    def check_argument_for_proper_class(self, argument_name, argument):
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
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [4, 6, 6]},
        "pad_token_id": names.pad_token_id,
        "bos_token_id": None,
        "eos_token_id": names.eos_token_id,
    }
    tower = {"depth": 2, "embed_dim": 64, "num_heads": 4, "hidden_size": 128, "patch_size": patch}
    ids = {f"{name}_id": names.convert_tokens_to_ids(token) for name, token in TOKENS.items()}
    config = Qwen2VLConfig(text_config=language, vision_config=tower, **ids)
    return Qwen2VLForConditionalGeneration(config)
