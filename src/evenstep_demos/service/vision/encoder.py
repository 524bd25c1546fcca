"""A small vision transformer: every patch of a picture sees all others of it, and of no other."""

from __future__ import annotations

import torch
from torch import nn

from evenstep_demos.models import Block, dense_attention, initialize
from evenstep_demos.service.strategies import HIDDEN, LAYERS, SHAPE
from evenstep_demos.service.vision.strategies import PATCH

_MERGED = 4  # patches of a cell


class VisionEncoder(nn.Module):
    """Turns patches into embeddings of cells, each of which is a token of the backbone."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Linear(PATCH, HIDDEN)
        self.blocks = nn.ModuleList(Block(HIDDEN, SHAPE["heads"]) for _ in range(LAYERS))
        self.norm = nn.LayerNorm(HIDDEN)
        self.merge = nn.Linear(_MERGED * HIDDEN, HIDDEN)
        initialize(self, LAYERS)

    def forward(self, pixels: torch.Tensor, grids: torch.Tensor) -> torch.Tensor:
        """
        Args:
            pixels: [patches, 588] uint8, of all pictures, each picture cell by cell.
            grids: [pictures, 3] int64 (1, rows of patches, columns of patches).

        Returns:
            [patches / 4, hidden]
        """
        x = self.patches(pixels.float() / 128 - 1)
        x = x + torch.cat([_positions(*grid) for grid in grids[:, 1:].tolist()])
        sizes = grids.prod(dim=1).tolist()

        def attend(*mixed: torch.Tensor) -> torch.Tensor:
            pictures = zip(*(torch.split(x[None], sizes, dim=1) for x in mixed))
            return torch.cat([dense_attention(*each, causal=False)[0] for each in pictures])

        for block in self.blocks:
            x = block(x, attend)
        out: torch.Tensor = self.merge(self.norm(x).reshape(-1, _MERGED * HIDDEN))
        return out


def _positions(rows: int, columns: int) -> torch.Tensor:
    """[rows x columns, hidden] embeddings of the patches' positions, in the order of patches."""
    row = torch.arange(rows).view(-1, 2)[:, None, :, None].expand(-1, columns // 2, 2, 2)
    column = torch.arange(columns).view(-1, 2)[None, :, None, :].expand(rows // 2, -1, 2, 2)
    quarter = HIDDEN // 4
    frequencies = 100.0 ** (-torch.arange(quarter) / quarter)
    angles = torch.stack([row.reshape(-1), column.reshape(-1)], 1)[:, :, None] * frequencies
    return torch.cat([angles.sin(), angles.cos()], dim=-1).flatten(1)
