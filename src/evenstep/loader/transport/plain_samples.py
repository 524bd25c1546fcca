"""Samples as bytes for other ranks: JSON, and the buffers of tensors and arrays behind it.

Documents of other ranks are not unpickled, so they must be made of plain things: numbers, text,
bytes, tensors, arrays, and lists, tuples and dictionaries of them.
"""

from __future__ import annotations

import json
import struct
from typing import Any

import numpy as np
import torch

from evenstep.errors import SampleError

_HEAD = struct.Struct("<I")  # bytes of the JSON
_PLAIN = (type(None), bool, int, float, str)


def pack_plain(sample: Any, name: str) -> bytes:
    """
    Args:
        name: of the sample, for an error.

    Raises:
        SampleError: something in it is not plain.
    """
    buffers: list[bytes] = []
    tree = json.dumps(_tree(sample, buffers, name)).encode()
    sizes = json.dumps(list(map(len, buffers))).encode()
    heads = _HEAD.pack(len(tree)) + tree + _HEAD.pack(len(sizes)) + sizes
    return heads + b"".join(buffers)


def unpack_plain(packed: memoryview) -> Any:
    """Inverse of `pack_plain`. Tensors and arrays are copies that may be changed."""
    tree, packed = _json(packed)
    sizes, packed = _json(packed)
    buffers, begin = [], 0
    for size in sizes:
        buffers.append(bytearray(packed[begin : begin + size]))
        begin += size
    return _value(tree, buffers)


def _json(packed: memoryview) -> tuple[Any, memoryview]:
    end = _HEAD.size + _HEAD.unpack_from(packed)[0]
    return json.loads(bytes(packed[_HEAD.size : end])), packed[end:]


def _tree(value: Any, buffers: list[bytes], name: str) -> Any:
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is dict:
        pairs = [[_tree(k, buffers, name), _tree(v, buffers, name)] for k, v in value.items()]
        return {"dict": pairs}
    if kind in (list, tuple):
        items = [_tree(item, buffers, name) for item in value]
        return items if kind is list else {"tuple": items}
    if kind is bytes:
        buffers.append(value)
        return {"bytes": len(buffers) - 1}
    if kind is torch.Tensor and value.device.type == "cpu" and value.layout is torch.strided:
        flat = value.detach().resolve_conj().resolve_neg().contiguous().view(-1)
        buffers.append(flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b"")
        dtype = str(value.dtype).removeprefix("torch.")
        return {"tensor": [len(buffers) - 1, dtype, list(value.shape)]}
    if isinstance(value, (np.ndarray, np.generic)) and not value.dtype.hasobject:
        buffers.append(value.tobytes())
        what = "array" if kind is np.ndarray else "scalar"
        return {what: [len(buffers) - 1, value.dtype.str, list(value.shape)]}
    raise SampleError(
        f"{name} holds a {kind.__module__}.{kind.__qualname__}, which cannot be sent to the other "
        "ranks that share the sample; let the dataset return tensors, arrays, numbers, text, and "
        "lists and dictionaries of them"
    )


def _value(tree: Any, buffers: list[bytearray]) -> Any:
    if isinstance(tree, list):
        return [_value(item, buffers) for item in tree]
    if not isinstance(tree, dict):
        return tree
    ((kind, said),) = tree.items()
    if kind == "dict":
        return {_value(k, buffers): _value(v, buffers) for k, v in said}
    if kind == "tuple":
        return tuple(_value(item, buffers) for item in said)
    if kind == "bytes":
        return bytes(buffers[said])
    number, dtype, shape = said
    if kind == "tensor":
        if not buffers[number]:
            return torch.empty(shape, dtype=getattr(torch, dtype))
        return torch.frombuffer(buffers[number], dtype=getattr(torch, dtype)).view(shape)
    array = np.frombuffer(buffers[number], np.dtype(dtype)).reshape(shape)
    return array if kind == "array" else array[()]
