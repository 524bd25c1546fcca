"""Raw rows of a tiny vision-language model, and what an update on some of them has to be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils.data import Dataset
from update_checks import gradient_of

from families import Family

Collate = Callable[[list[Any]], Any]


class Rows(Dataset):  # type: ignore[type-arg]
    """Rows of a family, as a user's data set returns them."""

    def __init__(self, family: Family, count: int) -> None:
        self.rows = [family.row(number) for number in range(count)]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return dict(self.rows[index])


def of_one_batch(
    model: torch.nn.Module, collate: Collate, rows: Sequence[Any]
) -> tuple[float, torch.Tensor]:
    """Mean loss of all supervised tokens of the rows in one padded batch, and its gradient."""
    model.zero_grad()
    loss = model(**collate([dict(row) for row in rows])).loss
    loss.backward()
    gradient = gradient_of(model)
    model.zero_grad()
    return loss.item(), gradient
