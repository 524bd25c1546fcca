"""What datasets say of their place survives a file."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pytest
import torch

from evenstep.loader.workers.dataset_state import decode, encode


def through_a_file(value: Any) -> Any:
    return decode(json.loads(json.dumps(encode(value))))


VALUES: list[Any] = [
    *(
        None,
        True,
        3,
        -2.5,
        "text",
        [1, [2]],
        {"a": {"b": []}},
        (),
        (1, ("x", [2])),
        b"",
        b"\x00\xff",
    ),
    *({0: 1, "0": 2}, {(1, 2): {3: None}}, {"evenstep kind": ["tensor", 1]}),
    random.Random(4).getstate(),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: str(value)[:20])
def test_plain_values_come_back_as_they_were(value: Any) -> None:
    assert repr(through_a_file(value)) == repr(value)


@pytest.mark.parametrize(
    "value",
    [
        torch.Generator().manual_seed(3).get_state(),
        torch.arange(6, dtype=torch.bfloat16).reshape(3, 2).T,
        torch.tensor(True),
        torch.empty(0, 4, dtype=torch.complex64),
    ],
    ids=lambda value: str(value.dtype),
)
def test_tensors_come_back_as_they_were(value: torch.Tensor) -> None:
    (back,) = through_a_file([value])
    assert back.dtype == value.dtype
    assert torch.equal(back, value)
    back.fill_(1)  # one may write to it


@pytest.mark.parametrize("dtype", ["<u4", ">f8", "?", "<i2"])
def test_arrays_come_back_as_they_were(dtype: str) -> None:
    value = np.arange(6).reshape(2, 3).astype(dtype)
    back = through_a_file({"x": value})["x"]
    assert back.dtype == value.dtype
    assert np.array_equal(back, value)
    assert through_a_file(np.float32(0.5)) == 0.5


@pytest.mark.parametrize("value", [object(), {1, 2}, np.array([object()]), torch.Generator()])
def test_what_no_file_can_hold_is_refused(value: Any) -> None:
    with pytest.raises(TypeError, match="it holds a"):
        encode({"x": [value]})


@pytest.mark.parametrize(
    "held",
    [
        ["tensor", ["torch.float32", [3], "AAAA"]],
        ["tensor", ["torch.load", [1], "AAAA"]],
        ["array", ["<i4", [-1], "AAAA"]],
        ["array", ["O", [1], "AAAAAAAAAAA="]],
        ["bytes", "no base 64"],
        ["pickle", "AAAA"],
        [],
    ],
)
def test_a_damaged_value_is_an_error_and_nothing_else(held: Any) -> None:
    with pytest.raises((LookupError, TypeError, ValueError)):
        decode({"evenstep kind": held})
