"""The filler sample: the shortest one seen, or one that another rank has lent."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from evenstep.errors import SampleError
from evenstep.loader.batcher.chunk_checks import FillerSample, pack_sample


def of_length(length: int, name: int = 0) -> dict[str, Any]:
    return {"input_ids": torch.full((length,), name), "name": name}


@given(st.lists(st.lists(st.integers(1, 50), min_size=1, max_size=8), min_size=1, max_size=8))
def test_it_is_the_first_of_the_shortest_seen(chunks: list[list[int]]) -> None:
    filler, lengths = FillerSample(), []
    for chunk in chunks:
        names = range(len(lengths), len(lengths) + len(chunk))
        filler.offer([of_length(n, name) for n, name in zip(chunk, names)], np.array(chunk))
        lengths += chunk
    assert filler.sample()["name"] == lengths.index(min(lengths))
    assert len(filler.sample()["input_ids"]) == min(lengths)


def test_changing_a_returned_or_offered_sample_does_not_change_the_next() -> None:
    offered = of_length(4, 7)
    filler = FillerSample()
    filler.offer([offered], np.array([4]))
    offered["input_ids"].zero_()
    given_out = filler.sample()
    given_out["input_ids"][:] = -1
    given_out["name"] = "changed"
    assert filler.sample()["input_ids"].tolist() == [7] * 4
    assert filler.sample()["name"] == 7


def test_a_rank_without_samples_borrows() -> None:
    lender, borrower = FillerSample(), FillerSample()
    borrower.borrow(b"")  # no rank had one to lend
    with pytest.raises(SampleError, match='exhausted="stop"'):
        borrower.sample()
    borrower.borrow(pack_sample(of_length(3, 5)))
    assert borrower.sample()["input_ids"].tolist() == [5, 5, 5]
    lender.offer([of_length(2, 1)], np.array([2]))
    lender.borrow(pack_sample(of_length(1, 9)))
    assert lender.sample()["name"] == 1, "a rank's own sample wins"
