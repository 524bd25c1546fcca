"""Samples arrive at a constructor as they were sent, whatever they are made of."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from evenstep.service.source_loader.staged_steps import Fetched
from evenstep.service.transport.frames import OWN_FRAME_BYTES, from_frames, to_frames


def tokens(*lengths: int, dtype: Any = np.int64) -> list[np.ndarray[Any, Any]]:
    return [np.arange(n).astype(dtype) for n in lengths]


def same(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and one.shape == other.shape and bool((one == other).all())
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[name], other[name]) for name in one)
    return bool(one == other)


SAMPLES: dict[str, list[Any]] = {
    "none": [],
    "arrays": [{"input_ids": each} for each in tokens(3, 0, 5)],
    "arrays and text": [{"input_ids": each, "text": str(each)} for each in tokens(3, 5)],
    "lists": [{"input_ids": each.tolist()} for each in tokens(3, 5)],
    "tensors": [{"input_ids": torch.from_numpy(each)} for each in tokens(3, 5)],
    "two types of numbers": [{"input_ids": t} for t in (*tokens(3), *tokens(3, dtype=np.int32))],
    "swapped bytes": [{"input_ids": each} for each in tokens(3, 5, dtype=">i8")],
    "strings": [{"words": np.array(["a", "bc"])}, {"words": np.array(["def"])}],
    "objects": [{"any": np.array([None, "a"], object)}, {"any": np.array([1], object)}],
    "matrices": [{"pixels": np.ones((n, 4), np.float32)} for n in (2, 3)],
    "large": [{"input_ids": each} for each in tokens(OWN_FRAME_BYTES, 2 * OWN_FRAME_BYTES)],
    "other fields": [{"input_ids": tokens(3)[0]}, {"labels": tokens(3)[0]}],
    "another order": [{"a": tokens(1)[0], "b": 1}, {"b": 2, "a": tokens(2)[0]}],
    "no fields": [{}, {}],
    "bare arrays": list(tokens(3, 5)),
    "a dict and none": [{"input_ids": tokens(3)[0]}, tokens(3)[0]],
}


@pytest.mark.parametrize("samples", SAMPLES.values(), ids=SAMPLES)
def test_samples_arrive_as_they_were_sent(samples: list[Any]) -> None:
    frames = to_frames(Fetched(np.arange(len(samples)), samples))
    arrived = from_frames([bytearray(frame) for frame in frames])
    assert arrived.rows.tolist() == list(range(len(samples)))
    assert len(arrived.samples) == len(samples)
    assert all(map(same, samples, arrived.samples))


def test_what_arrived_can_be_written_to_without_changing_another_sample() -> None:
    samples = [{"input_ids": each} for each in tokens(3000, 3000)]
    frames = to_frames(Fetched(np.arange(2), samples))
    one, other = from_frames([bytearray(frame) for frame in frames]).samples
    one["input_ids"][:] = -1
    assert same(other, samples[1])
