"""Tokenized samples, cheap to send to another process."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import Dataset


@dataclass(frozen=True)
class Tokens(Dataset[dict[str, torch.Tensor]]):
    """Map-style dataset over one flat array."""

    flat: npt.NDArray[np.int32]
    offsets: npt.NDArray[np.int64]
    """[samples + 1]"""

    @classmethod
    def of(cls, samples: list[list[int]]) -> Tokens:
        sizes = [0, *map(len, samples)]
        return cls(np.concatenate([np.array(s, np.int32) for s in samples]), np.cumsum(sizes))

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        return np.diff(self.offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = self.flat[self.offsets[index] : self.offsets[index + 1]].astype(np.int64)
        return {"input_ids": torch.from_numpy(tokens), "labels": torch.from_numpy(tokens.copy())}
