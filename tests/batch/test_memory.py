"""Large tensors are made in borrowed memory, and are equal to what torch makes."""

from __future__ import annotations

import pytest
import torch

from evenstep.batch import PadCollator
from evenstep.batch.memory import borrowing, cat, stack

ROWS = 512  # x 512 float32 = 1 MiB, the least that is borrowed


class Lender:
    def __init__(self) -> None:
        self.lent: list[memoryview] = []

    def __call__(self, size: int) -> memoryview:
        self.lent.append(memoryview(bytearray(size)))
        return self.lent[-1]


def lies_in(tensor: torch.Tensor, memory: memoryview) -> bool:
    return tensor.data_ptr() == torch.frombuffer(memory, dtype=torch.uint8).data_ptr()


def rows(count: int, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    return [torch.randint(100, (512,)).to(dtype) + i for i in range(count)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_large_results_lie_in_borrowed_memory_and_are_equal(dtype):
    lender = Lender()
    parts = rows(2 * ROWS, dtype)
    with borrowing(lender):
        stacked, joined = stack(parts), cat(parts)
    assert torch.equal(stacked, torch.stack(parts))
    assert torch.equal(joined, torch.cat(parts))
    assert stacked.dtype == joined.dtype == dtype
    assert lies_in(stacked, lender.lent[0])
    assert lies_in(joined, lender.lent[1])


def test_the_lender_is_forgotten_when_a_collator_fails():
    lender = Lender()
    with pytest.raises(ZeroDivisionError), borrowing(lender):
        1 / 0  # noqa: B018
    stack(rows(ROWS))
    assert lender.lent == []


def test_pad_collator_makes_images_and_patches_in_borrowed_memory():
    lender = Lender()
    samples = [
        {
            "input_ids": torch.arange(1, 5 + i),
            "image": torch.rand(3, 320, 320),
            "pixel_values": torch.rand(400 + i, 1176),
            "image_grid_thw": torch.tensor([[1, 20, 20]]),
        }
        for i in range(3)
    ]
    plain = PadCollator()(samples)
    with borrowing(lender):
        batch = PadCollator()(samples)
    assert batch.keys() == plain.keys()
    assert all(torch.equal(batch[name], plain[name]) for name in plain)
    for name in ("image", "pixel_values"):
        assert any(lies_in(batch[name], memory) for memory in lender.lent)
    assert len(lender.lent) == 2
