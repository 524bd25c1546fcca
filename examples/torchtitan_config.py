"""A config for torchtitan: its Llama on batches of equal cost, made of texts of very uneven length.

    PYTHONPATH=examples torchrun --nproc-per-node 2 -m torchtitan.train \
        --module torchtitan_config --config even_debugmodel

The only evenstep lines are the import and `config.dataloader`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torchtitan.components.tokenizer import BaseTokenizer
from torchtitan.models.llama3.config_registry import llama3_debugmodel
from torchtitan.trainer import Trainer

from evenstep.integrations.torchtitan import EvenDataLoader


class Bytes(BaseTokenizer):
    """A token for each byte, so that the example needs no files."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseTokenizer.Config):
        pass

    def __init__(self, config: Config, **others: Any) -> None:
        super().__init__()

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def decode(self, tokens: list[int]) -> str:
        return bytes(tokens).decode()

    def get_vocab_size(self) -> int:
        return 256


class Texts(torch.utils.data.Dataset):
    """Of very uneven length, the first third of each masked like a prompt."""

    def __init__(self, tokenizer: BaseTokenizer, longest: int) -> None:
        generator = torch.Generator().manual_seed(0)
        words = torch.empty(2000).log_normal_(3.0, 1.0, generator=generator).long() + 2
        self.texts = [f"text {i} " * int(count) for i, count in enumerate(words)]
        self.tokenizer = tokenizer
        self.longest = longest

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = torch.tensor(self.tokenizer.encode(self.texts[index])[: self.longest])
        labels = tokens.clone()
        labels[: len(labels) // 3] = -100
        return {"input_ids": tokens, "labels": labels}


def even_debugmodel() -> Trainer.Config:
    config = llama3_debugmodel()
    config.tokenizer = Bytes.Config()
    config.training.disable_cuda_graphs = True  # rows differ in length
    config.dataloader = EvenDataLoader.Config(make_dataset=Texts)
    return config
