"""Plain values come back as they were, from a file and from another rank, and nothing is unpickled;
and the filler sample: the shortest one seen, or one that another rank has lent so."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from evenstep.errors import SampleError
from evenstep.loader.batcher.chunk_checks import FillerSample, pack_sample
from evenstep.loader.transport.plain_values import decode, encode, pack_plain, unpack_plain


def through_a_file(value: Any) -> Any:
    return decode(json.loads(json.dumps(encode(value))))


def to_another_rank(value: Any) -> Any:
    return unpack_plain(memoryview(pack_plain(value, "sample 3")))


both = pytest.mark.parametrize("sent", [through_a_file, to_another_rank])


@both
@pytest.mark.parametrize(
    "value",
    [
        *(
            None,
            True,
            3,
            -2.5,
            "a\nü",
            [1, [2]],
            {"a": {"b": []}},
            (),
            (1, ("x", [2])),
            b"",
            b"\0x",
        ),
        *({0: 1, "0": 2}, {(1, 2): {3: None}}, {"evenstep kind": ["tensor", 1]}, float("inf")),
        random.Random(4).getstate(),
    ],
    ids=lambda value: str(value)[:20],
)
def test_plain_values(value: Any, sent: Any) -> None:
    assert repr(sent(value)) == repr(value)


@both
@pytest.mark.parametrize("dtype", [torch.int64, torch.bfloat16, torch.bool, torch.complex64])
@pytest.mark.parametrize("shape", [(3, 2), (0, 4), ()])
def test_tensors(dtype: torch.dtype, shape: tuple[int, ...], sent: Any) -> None:
    given = torch.ones(shape).to(dtype)
    given = given.cumsum(0).to(dtype).T if given.ndim == 2 else given
    made, other = sent([given, 1])
    assert made.dtype == dtype
    assert torch.equal(made, given)
    assert other == 1
    made.zero_()  # whoever gets it may change it


@both
@pytest.mark.parametrize("dtype", ["<u4", ">f8", "?", "<i2", "U3"])
def test_arrays(dtype: str, sent: Any) -> None:
    for value in (np.arange(6).reshape(2, 3).astype(dtype), np.empty((0, 2), dtype)):
        back = sent({"x": value})["x"]
        assert (back.dtype, back.shape) == (value.dtype, value.shape)
        assert np.array_equal(back, value)


@pytest.mark.parametrize("odd", [object(), {1, 2}, np.array([object()]), torch.Generator()])
def test_what_is_not_plain_is_refused(odd: Any) -> None:
    with pytest.raises(TypeError, match="it holds a"):
        encode({"x": [odd]})
    with pytest.raises(SampleError, match=r"sample 3: it holds a .*cannot be sent to other"):
        pack_plain({"x": [odd]}, "sample 3")


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
