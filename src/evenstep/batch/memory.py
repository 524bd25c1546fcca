"""Where collators put large tensors.

In a batcher process a large tensor is best made where the trainer will read it, in shared memory:
that saves a copy and the cost of fresh pages. So the batcher lends memory to the collators that it
runs. Elsewhere, and for small tensors, torch allocates the memory.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Callable, Iterator, Sequence

import torch

_MIN_SIZE = 1 << 20  # bytes; smaller tensors are copied quickly

_thread = threading.local()


@contextlib.contextmanager
def borrowing(lend: Callable[[int], memoryview]) -> Iterator[None]:
    """Lets collators called in this thread get memory for large tensors from `lend(bytes)`."""
    _thread.lend = lend
    try:
        yield
    finally:
        del _thread.lend


def stack(rows: Sequence[torch.Tensor]) -> torch.Tensor:
    """`torch.stack` of tensors of one shape and dtype."""
    return torch.stack(rows, out=_room(rows, (len(rows), *rows[0].shape)))  # type: ignore[arg-type]


def cat(rows: Sequence[torch.Tensor]) -> torch.Tensor:
    """`torch.cat` along the first dimension, of tensors of one dtype and like shapes."""
    shape = (sum(row.shape[0] for row in rows), *rows[0].shape[1:])
    return torch.cat(rows, out=_room(rows, shape))  # type: ignore[arg-type]


def _room(rows: Sequence[torch.Tensor], shape: tuple[int, ...]) -> torch.Tensor | None:
    """Borrowed memory for the result; None if torch should allocate it."""
    lend = getattr(_thread, "lend", None)
    size = math.prod(shape) * rows[0].element_size()
    if lend is None or size < _MIN_SIZE or not all(map(_is_plain, rows)):
        return None
    return torch.frombuffer(lend(size), dtype=rows[0].dtype).view(shape)


def _is_plain(tensor: torch.Tensor) -> bool:
    return (
        type(tensor) is torch.Tensor
        and tensor.device.type == "cpu"
        and tensor.layout is torch.strided
        and not tensor.requires_grad
    )
