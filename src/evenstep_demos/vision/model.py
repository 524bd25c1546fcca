"""A Qwen2-VL of transformers with 0.7 million random weights."""

from __future__ import annotations

import torch
from torch import nn
from transformers import Qwen2VLConfig, Qwen2VLForConditionalGeneration, Qwen2VLProcessor

from evenstep_demos.vision.collate import NAMED


class VisionLanguageModel(nn.Module):
    """Called with a batch, it returns its mean loss."""

    def __init__(
        self, processor: Qwen2VLProcessor, *, hidden_size: int = 128, layers: int = 2
    ) -> None:
        super().__init__()
        names = processor.tokenizer
        sizes = {"hidden_size": hidden_size, "num_attention_heads": 4, "num_key_value_heads": 4}
        config = Qwen2VLConfig(
            text_config={
                **sizes,
                "vocab_size": len(names),
                "intermediate_size": 3 * hidden_size,
                "num_hidden_layers": layers,
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
                "depth": 2,
                "embed_dim": 64,
                "hidden_size": hidden_size,
                "num_heads": 4,
                "patch_size": processor.image_processor.patch_size,
            },
            **{f"{name}_id": names.convert_tokens_to_ids(token) for name, token in NAMED.items()},
        )
        self.model = Qwen2VLForConditionalGeneration(config)

    def forward(self, **batch: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = self.model(**batch).loss
        return loss
