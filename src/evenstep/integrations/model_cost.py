"""The model whose time a loader makes equal, among what a trainer is given."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from evenstep.loader.dataloader import DataLoader


def take_cost(loader: DataLoader, objects: Iterable[Any]) -> None:
    """Has the loader take the cost of the one model with a ``config`` among `objects`, such as one
    of transformers; and of none where there are several. All ranks call it: see
    `evenstep.DataLoader.take_cost`."""
    models = [one for one in objects if isinstance(one, torch.nn.Module) and hasattr(one, "config")]
    if len(models) == 1:
        loader.take_cost(models[0])
