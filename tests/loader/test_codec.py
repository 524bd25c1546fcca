from __future__ import annotations

from typing import Any

import pytest
import torch

from evenstep.loader.transport.shared_memory import from_buffers, to_buffers


def round_trip(obj: Any) -> Any:
    data, buffers = to_buffers(obj)
    return from_buffers(data, [bytearray(buffer) for buffer in buffers])


DTYPES = (
    torch.bool,
    torch.int64,
    torch.bfloat16,
    torch.complex64,
    torch.float8_e4m3fn,
)


@pytest.mark.parametrize("dtype", DTYPES)
def test_tensors_of_every_dtype_come_back_from_their_buffer(dtype):
    tensor = torch.arange(6).reshape(2, 3).to(dtype)
    data, buffers = to_buffers(tensor)
    assert [buffer.nbytes for buffer in buffers] == [tensor.nbytes]
    back = from_buffers(data, [bytearray(buffers[0])])
    assert back.dtype == dtype
    assert back.shape == (2, 3)
    assert torch.equal(back.view(torch.uint8), tensor.view(torch.uint8))


@pytest.mark.parametrize(
    "tensor",
    [
        torch.empty(0),
        torch.empty(3, 0, 2, dtype=torch.int64),
        torch.tensor(7),
        torch.arange(12).reshape(3, 4).T,
        torch.arange(12)[::3],
        torch.arange(4).expand(5, 4),
        torch.complex(torch.ones(2), torch.ones(2)).conj(),
        torch.eye(3).to_sparse(),
        torch.ones(3, requires_grad=True),
    ],
)
def test_tensors_of_every_shape_come_back_equal(tensor):
    back = round_trip(tensor)
    assert back.shape == tensor.shape
    assert back.requires_grad == tensor.requires_grad
    assert torch.equal(back.to_dense(), tensor.to_dense())
