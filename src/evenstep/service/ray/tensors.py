"""Sends tensors as NumPy arrays, which travel outside the pickled rest of an answer.

Torch's own way copies them into the pickled bytes, with the whole storage behind a view. The
receiver gets a copy, which can be written to and does not hold Ray's memory.
"""

from __future__ import annotations

from typing import Any

import torch

from evenstep.service.ray.import_ray import import_ray

__all__ = ["register_tensors"]


def register_tensors() -> None:
    """Registers this serializer in this process, for all that it sends from now on."""
    import_ray()
    from ray.util import register_serializer

    register_serializer(torch.Tensor, serializer=_packed, deserializer=_unpacked)


def _packed(tensor: torch.Tensor) -> tuple[Any, str, tuple[int, ...]]:
    plain = tensor.detach().to("cpu").contiguous()
    name = str(plain.dtype).removeprefix("torch.")
    # As bytes, for any dtype: NumPy has neither bfloat16 nor 8-bit floats.
    return plain.reshape(-1).view(torch.uint8).numpy(), name, tuple(plain.shape)


def _unpacked(packed: tuple[Any, str, tuple[int, ...]]) -> torch.Tensor:
    array, name, shape = packed
    return torch.from_numpy(array.copy()).view(getattr(torch, name)).reshape(shape)
