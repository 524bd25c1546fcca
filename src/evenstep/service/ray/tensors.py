"""How tensors travel: as NumPy arrays, which Ray keeps apart from the rest of an answer.

Torch's own way copies them into the pickled bytes, with all of the storage that a view is a part
of. Who receives one gets a copy of its own, which can be written to and does not hold Ray's memory.
"""

from __future__ import annotations

from typing import Any

import torch

from evenstep.service.ray.import_ray import import_ray

__all__ = ["register_tensors"]


def register_tensors() -> None:
    """In this process, for all that it sends from now on."""
    import_ray()
    from ray.util import register_serializer

    register_serializer(torch.Tensor, serializer=_packed, deserializer=_unpacked)


def _packed(tensor: torch.Tensor) -> tuple[Any, str, tuple[int, ...]]:
    plain = tensor.detach().to("cpu").contiguous()
    name = str(plain.dtype).removeprefix("torch.")
    # Of every dtype: NumPy has no bfloat16 nor the 8-bit ones.
    return plain.reshape(-1).view(torch.uint8).numpy(), name, tuple(plain.shape)


def _unpacked(packed: tuple[Any, str, tuple[int, ...]]) -> torch.Tensor:
    array, name, shape = packed
    return torch.from_numpy(array.copy()).view(getattr(torch, name)).reshape(shape)
