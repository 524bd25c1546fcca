"""A small vision transformer: every patch of a picture sees all others of it, and of no other."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from evenstep_demos.service.model import small_start
from evenstep_demos.service.sizes import HEADS, HIDDEN, LAYERS
from evenstep_demos.service.vision.encode import PATCH

__all__ = ["VisionEncoder"]

_MERGED = 4  # patches of a cell


class VisionEncoder(nn.Module):
    """Patches to embeddings of cells, which the backbone takes for tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Linear(PATCH, HIDDEN)
        self.blocks = nn.ModuleList(_Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(HIDDEN)
        self.merge = nn.Linear(_MERGED * HIDDEN, HIDDEN)
        small_start(self, LAYERS)

    def forward(self, pixels: torch.Tensor, grids: torch.Tensor) -> torch.Tensor:
        """
        Args:
            pixels: [patches, 588] uint8, of all pictures, each cell by cell.
            grids: [pictures, 3] int64 (1, rows of patches, columns of patches).

        Returns:
            [patches / 4, hidden]
        """
        x = self.patches(pixels.float() / 128 - 1)
        x = x + torch.cat([_places(*grid) for grid in grids[:, 1:].tolist()])
        sizes = grids.prod(dim=1).tolist()
        for block in self.blocks:
            x = block(x, sizes)
        out: torch.Tensor = self.merge(self.norm(x).reshape(-1, _MERGED * HIDDEN))
        return out


class _Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(HIDDEN)
        self.query_key_value = nn.Linear(HIDDEN, 3 * HIDDEN, bias=False)
        self.attention_out = nn.Linear(HIDDEN, HIDDEN, bias=False)
        self.mlp_norm = nn.LayerNorm(HIDDEN)
        self.mlp = nn.Sequential(
            nn.Linear(HIDDEN, 4 * HIDDEN, bias=False),
            nn.GELU(),
            nn.Linear(4 * HIDDEN, HIDDEN, bias=False),
        )

    def forward(self, x: torch.Tensor, sizes: list[int]) -> torch.Tensor:
        mixed = self.query_key_value(self.attention_norm(x)).view(len(x), 3, HEADS, -1)
        attended = [
            F.scaled_dot_product_attention(*picture.permute(1, 2, 0, 3)[:, None]).squeeze(0)
            for picture in mixed.split(sizes)
        ]
        joined = torch.cat(attended, dim=1).transpose(0, 1).reshape(len(x), HIDDEN)
        x = x + self.attention_out(joined)
        out: torch.Tensor = x + self.mlp(self.mlp_norm(x))
        return out


def _places(rows: int, columns: int) -> torch.Tensor:
    """[rows x columns, hidden] what tells a patch where it is, in the order of patches."""
    row = torch.arange(rows).view(-1, 2)[:, None, :, None].expand(-1, columns // 2, 2, 2)
    column = torch.arange(columns).view(-1, 2)[None, :, None, :].expand(rows // 2, -1, 2, 2)
    quarter = HIDDEN // 4
    frequencies = 100.0 ** (-torch.arange(quarter) / quarter)
    angles = torch.stack([row.reshape(-1), column.reshape(-1)], 1)[:, :, None] * frequencies
    return torch.cat([angles.sin(), angles.cos()], dim=-1).flatten(1)
