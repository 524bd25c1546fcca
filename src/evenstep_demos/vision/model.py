"""A Qwen2-VL of transformers with 0.7 million random weights."""

from __future__ import annotations

import torch
from torch import nn
from transformers import Qwen2VLConfig, Qwen2VLForConditionalGeneration, Qwen2VLProcessor

from evenstep.cost import TransformerCost, VisionLanguageCost
from evenstep_demos.vision.collate import NAMED

_HIDDEN, _LAYERS, _HEADS = 128, 2, 4
_VISION_HIDDEN, _VISION_LAYERS = 64, 2


class VisionLanguageModel(nn.Module):
    """Called with a batch, it returns its mean loss."""

    def __init__(self, processor: Qwen2VLProcessor) -> None:
        super().__init__()
        names = processor.tokenizer
        heads = dict.fromkeys(("num_attention_heads", "num_key_value_heads"), _HEADS)
        config = Qwen2VLConfig(
            text_config={
                **heads,
                "hidden_size": _HIDDEN,
                "vocab_size": len(names),
                "intermediate_size": 3 * _HIDDEN,
                "num_hidden_layers": _LAYERS,
                "use_cache": False,
                "rope_parameters": {
                    "rope_type": "default",
                    "rope_theta": 10_000.0,
                    "mrope_section": [4, 6, 6],
                },
                "pad_token_id": names.pad_token_id,
                "bos_token_id": None,
                "eos_token_id": names.eos_token_id,
            },
            vision_config={
                "depth": _VISION_LAYERS,
                "embed_dim": _VISION_HIDDEN,
                "hidden_size": _HIDDEN,
                "num_heads": _HEADS,
                "patch_size": processor.image_processor.patch_size,
            },
            **{f"{name}_id": names.convert_tokens_to_ids(token) for name, token in NAMED.items()},
        )
        self.model = Qwen2VLForConditionalGeneration(config)

    def forward(self, **batch: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = self.model(**batch).loss
        return loss


def cost(vocabulary: int) -> VisionLanguageCost:
    """Operations of both parts of the model."""
    language = TransformerCost(
        layers=_LAYERS,
        hidden_size=_HIDDEN,
        heads=_HEADS,
        ffn_size=3 * _HIDDEN,
        vocab_size=vocabulary,
    )
    tower = TransformerCost.vision(
        layers=_VISION_LAYERS, hidden_size=_VISION_HIDDEN, heads=_HEADS, ffn_size=4 * _VISION_HIDDEN
    )
    return VisionLanguageCost(language=language, vision=tower)
