"""Plain values as JSON and bytes, without pickle: states of datasets, which come from files, and
samples of other ranks, which come from a network.

Plain are numbers, text, None, bytes, tensors, arrays, and lists, tuples and dictionaries of these.
JSON holds numbers, text, None, lists, and dictionaries with text for keys as they are. Any other
value becomes a dictionary with the single key `_KIND`.
"""

from __future__ import annotations

import base64
import functools
import json
import math
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from evenstep.errors import SampleError

_KIND = "evenstep kind"
_DTYPES = {str(dtype): dtype for dtype in vars(torch).values() if isinstance(dtype, torch.dtype)}
_BASES = (bool, int, float, str, bytes, list, tuple, dict)
_HEAD = struct.Struct("<I")  # bytes of the JSON


def _to_text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _from_text(text: str) -> bytearray:
    return bytearray(base64.b64decode(text, validate=True))


def encode(value: Any, keep: Callable[[bytes], Any] = _to_text) -> Any:
    """Instances of subclasses come back as their base class, tensors on the CPU, and numbers of
    NumPy as Python's.

    Args:
        keep: stores bytes; returns what JSON holds in their place.

    Raises:
        TypeError: a value is not plain.
    """
    inner = functools.partial(encode, keep=keep)
    if isinstance(value, np.generic):
        value = value.item()
    base = next((base for base in _BASES if isinstance(value, base)), type(value))
    value = value if type(value) is base else base(value)
    kind = type(value)
    if value is None or kind in (bool, int, float, str):
        return value
    if kind is list:
        return [inner(item) for item in value]
    if kind is dict:
        if all(type(key) is str for key in value) and _KIND not in value:
            return {key: inner(item) for key, item in value.items()}
        return {_KIND: ["dict", [[inner(key), inner(item)] for key, item in value.items()]]}
    if kind is tuple:
        return {_KIND: ["tuple", [inner(item) for item in value]]}
    if kind in (bytes, bytearray):
        return {_KIND: ["bytes", keep(bytes(value))]}
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return {_KIND: ["array", [value.dtype.str, list(value.shape), keep(value.tobytes())]]}
    if isinstance(value, torch.Tensor) and value.layout == torch.strided:
        whole = value.detach().cpu().resolve_conj().resolve_neg().contiguous()
        flat: Any = whole.view(-1).view(torch.uint8).numpy()
        return {_KIND: ["tensor", [str(value.dtype), list(value.shape), keep(flat.tobytes())]]}
    raise TypeError(f"it holds a {kind.__module__}.{kind.__qualname__}")


def decode(value: Any, kept: Callable[[Any], bytearray] = _from_text) -> Any:
    """Inverse of `encode`. Tensors and arrays may be written to.

    Args:
        kept: returns the bytes that were stored.

    Raises:
        LookupError, TypeError, ValueError: it is not what `encode` returned.
    """
    inner = functools.partial(decode, kept=kept)
    if isinstance(value, list):
        return [inner(item) for item in value]
    if not isinstance(value, dict):
        return value
    if _KIND not in value:
        return {key: inner(item) for key, item in value.items()}
    kind, held = value[_KIND]
    if kind == "dict":
        return {inner(key): inner(item) for key, item in held}
    if kind == "tuple":
        return tuple(map(inner, held))
    if kind == "bytes":
        return bytes(kept(held))
    if kind not in ("array", "tensor"):
        raise ValueError(f"no kind of value is called {kind!r}")
    name, shape, place = held
    data = kept(place)
    dtype: Any = _DTYPES[name] if kind == "tensor" else np.dtype(name)
    if not all(type(size) is int and size >= 0 for size in shape):
        raise ValueError(f"{shape!r} is no shape")
    if math.prod(shape) * dtype.itemsize != len(data):
        raise ValueError(f"{len(data)} bytes for a shape of {shape} of {name}")
    if kind == "tensor":
        return torch.from_numpy(np.frombuffer(data, np.uint8)).view(_DTYPES[name]).view(shape)
    return np.frombuffer(data, dtype).reshape(shape)


def pack_plain(sample: Any, name: str) -> bytes:
    """A sample for other ranks: JSON, and the bytes of its tensors and arrays behind it.

    Args:
        name: of the sample, for an error.

    Raises:
        SampleError: something in it is not plain.
    """
    buffers: list[bytes] = []
    end = 0

    def keep(data: bytes) -> list[int]:
        nonlocal end
        begin, end = end, end + len(data)
        buffers.append(data)
        return [begin, end]

    try:
        text = json.dumps(encode(sample, keep)).encode()
    except TypeError as error:
        raise SampleError(
            f"{name}: {error}, which cannot be sent to other ranks; make it of tensors, arrays, "
            "numbers, text, and lists and dictionaries of them"
        ) from error
    return b"".join([_HEAD.pack(len(text)), text, *buffers])


def unpack_plain(packed: memoryview) -> Any:
    """Inverse of `pack_plain`."""
    end = _HEAD.size + _HEAD.unpack_from(packed)[0]
    data = packed[end:]
    return decode(
        json.loads(bytes(packed[_HEAD.size : end])), lambda span: bytearray(data[slice(*span)])
    )
