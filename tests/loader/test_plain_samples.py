"""Samples as bytes for other ranks: what comes out is what went in, and nothing is unpickled."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from evenstep.errors import SampleError
from evenstep.loader.transport.plain_samples import pack_plain, unpack_plain


def there_and_back(sample: Any) -> Any:
    return unpack_plain(memoryview(pack_plain(sample, "sample 3")))


@pytest.mark.parametrize(
    "sample",
    [
        {"input_ids": [1, 2, 3], "text": "a\nü", 5: (True, None, 2.5, float("inf")), "raw": b"\0x"},
        [[], {}, (), "", b""],
        7,
    ],
)
def test_plain_values_come_out_as_they_went_in(sample: Any) -> None:
    made = there_and_back(sample)
    assert made == sample
    assert type(made) is type(sample)


@pytest.mark.parametrize("dtype", [torch.int64, torch.bfloat16, torch.bool, torch.complex64])
@pytest.mark.parametrize("shape", [(3, 2), (0, 4), ()])
def test_tensors_come_out_with_type_and_shape(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    given = torch.ones(shape).to(dtype)
    given = given.cumsum(0).to(dtype).T if given.ndim == 2 else given
    (made, other) = there_and_back([given, 1])
    assert made.dtype == dtype
    assert torch.equal(made, given)
    assert other == 1
    made.zero_()  # a collate function may change it


def test_arrays_and_numbers_of_numpy_come_out_with_type_and_shape() -> None:
    given = np.arange(6, dtype="<u2").reshape(2, 3)
    array, number, empty = there_and_back((given, np.float32(2.5), np.empty((0, 2), "U3")))
    assert array.dtype == given.dtype
    assert np.array_equal(array, given)
    assert isinstance(number, np.float32)
    assert number == 2.5
    assert empty.shape == (0, 2)


@pytest.mark.parametrize("odd", [object(), {1, 2}, np.array([object()]), torch.nn.Parameter])
def test_what_is_not_plain_is_refused_by_name(odd: Any) -> None:
    with pytest.raises(SampleError, match=r"sample 3 holds a .*cannot be sent to the other ranks"):
        pack_plain({"x": [odd]}, "sample 3")
