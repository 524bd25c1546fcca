"""Documents to load in tests: token sequences of heavy-tailed lengths, each with its index."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

VOCABULARY = 64


class Documents(Dataset):
    """Dictionaries of ``input_ids``, ``labels`` and ``identity``; a function of (seed, index)."""

    def __init__(self, count: int, *, longest: int = 256, prompts: bool = False, seed: int = 0):
        """
        Args:
            count: number of documents.
            longest: tokens that no document exceeds. The median has about an eighth.
            prompts: mask the labels of a random part of each document, from its beginning.
            seed: that of lengths, tokens and masks.
        """
        drawn = np.random.default_rng(seed).lognormal(np.log(longest / 8), 1.0, count)
        self.lengths = np.clip(drawn, 2, longest).astype(np.int64)
        self.prompts = prompts
        self.seed = seed

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> dict[str, Any]:
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + index)
        length = int(self.lengths[index])
        tokens = torch.randint(1, VOCABULARY, (length,), generator=generator)
        labels = tokens.clone()
        if self.prompts:
            labels[: int(torch.randint(0, length, (), generator=generator))] = -100
        return {"input_ids": tokens, "labels": labels, "identity": int(index)}
