"""Page-locked copies of a batch, for asynchronous copies to an accelerator."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch

__all__ = ["pin"]


def pin(batch: Any) -> Any:
    """The batch with every tensor in page-locked memory. As in torch's DataLoader, containers are
    rebuilt, an object with a ``pin_memory`` method pins itself, and anything else stays."""
    if isinstance(batch, torch.Tensor) or hasattr(batch, "pin_memory"):
        return batch.pin_memory()
    if isinstance(batch, Mapping):
        pinned = {key: pin(value) for key, value in batch.items()}
        return pinned if type(batch) is dict else type(batch)(pinned)  # type: ignore[call-arg]
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(pin(value) for value in batch))
    if isinstance(batch, (list, tuple)):
        return type(batch)(pin(value) for value in batch)
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        fields = {f.name: pin(getattr(batch, f.name)) for f in dataclasses.fields(batch) if f.init}
        return dataclasses.replace(batch, **fields)
    return batch
