"""`gathering_uneven`: values of each sample, gathered from ranks with different numbers of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from evenstep.integrations.rank_values import of_all_ranks


@contextmanager
def gathering_uneven(accelerator: Any) -> Iterator[None]:
    """While it lasts, the accelerator gathers tensors of different sizes: trainers of preferences
    and of rollouts gather a value of each sample to log it."""
    equal = accelerator.gather

    def gather(values: Any) -> Any:
        if not isinstance(values, torch.Tensor) or not values.ndim:
            return equal(values)
        sizes = of_all_ranks(len(values))
        if len(set(sizes)) == 1:
            return equal(values)
        room = values.new_zeros((max(sizes), *values.shape[1:]))
        room[: len(values)] = values
        parts = equal(room).split(max(sizes))
        return torch.cat([part[:size] for part, size in zip(parts, sizes)])

    accelerator.gather = gather
    try:
        yield
    finally:
        del accelerator.gather
