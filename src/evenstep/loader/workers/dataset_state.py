"""What an iterable dataset says of its place, as values that JSON can hold, and back.

Numbers, text, None, lists and dictionaries with text for keys stay as they are. Anything else that
states are made of becomes a dictionary with the one key ``_KIND``: tensors, as of a random
generator, arrays, bytes, tuples, and dictionaries with other keys. No pickle is involved, since
states come from files.
"""

from __future__ import annotations

import base64
import math
from typing import Any

import numpy as np
import torch

_KIND = "evenstep kind"
_DTYPES = {str(dtype): dtype for dtype in vars(torch).values() if isinstance(dtype, torch.dtype)}


def encode(value: Any) -> Any:
    """
    Raises:
        TypeError: a value is of a type that is not among those above.
    """
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, list):
        return [encode(inner) for inner in value]
    if isinstance(value, dict):
        if all(isinstance(key, str) for key in value) and _KIND not in value:
            return {key: encode(inner) for key, inner in value.items()}
        return _tagged("dict", [[encode(key), encode(inner)] for key, inner in value.items()])
    if isinstance(value, tuple):
        return _tagged("tuple", [encode(inner) for inner in value])
    if isinstance(value, (bytes, bytearray)):
        return _tagged("bytes", _text(bytes(value)))
    if isinstance(value, np.generic):
        return encode(value.item())
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
        return _tagged("array", [value.dtype.str, list(value.shape), _text(value.tobytes())])
    if isinstance(value, torch.Tensor) and value.layout == torch.strided:
        flat: Any = value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy()
        return _tagged("tensor", [str(value.dtype), list(value.shape), _text(flat.tobytes())])
    raise TypeError(f"it holds a {type(value).__name__}")


def decode(value: Any) -> Any:
    """
    Raises:
        LookupError, TypeError, ValueError: it is not what `encode` returned.
    """
    if isinstance(value, list):
        return [decode(inner) for inner in value]
    if not isinstance(value, dict):
        return value
    if _KIND not in value:
        return {key: decode(inner) for key, inner in value.items()}
    kind, held = value[_KIND]
    if kind == "dict":
        return {decode(key): decode(inner) for key, inner in held}
    if kind == "tuple":
        return tuple(map(decode, held))
    if kind == "bytes":
        return base64.b64decode(held, validate=True)
    if kind not in ("array", "tensor"):
        raise ValueError(f"no kind of value is called {kind!r}")
    name, shape, text = held
    data = bytearray(base64.b64decode(text, validate=True))
    if kind == "array":
        dtype = np.dtype(name)
        _check_size(data, shape, dtype.itemsize)
        return np.frombuffer(data, dtype).reshape(shape)
    _check_size(data, shape, _DTYPES[name].itemsize)
    flat = torch.from_numpy(np.frombuffer(data, np.uint8))
    return flat.view(_DTYPES[name]).view(shape)


def _tagged(kind: str, held: Any) -> dict[str, Any]:
    return {_KIND: [kind, held]}


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _check_size(data: bytearray, shape: list[int], item: int) -> None:
    if not all(type(size) is int and size >= 0 for size in shape):
        raise ValueError(f"{shape!r} is no shape")
    if math.prod(shape) * item != len(data):
        raise ValueError(f"{len(data)} bytes for a shape of {shape} with {item} bytes each")
