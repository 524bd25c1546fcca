"""Long documents of a map-style dataset are split, and no token is lost by it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from documents import Documents
from evenstep.data import SplitDocuments
from evenstep.errors import SampleError

DOCUMENTS = Documents(40, prompts=True)


@given(st.integers(1, 300))
def test_the_pieces_of_a_document_are_all_of_it_in_order(limit: int) -> None:
    split = SplitDocuments(DOCUMENTS, limit, lengths=DOCUMENTS.lengths)
    pieces: dict[int, list[Any]] = {}
    for index in range(len(split)):
        sample = split[index]
        assert 1 <= len(sample["input_ids"]) == len(sample["labels"]) <= limit
        pieces.setdefault(sample["identity"], []).append(sample)
    for identity in range(len(DOCUMENTS)):
        whole = DOCUMENTS[identity]
        for name in ("input_ids", "labels"):
            assert torch.equal(torch.cat([p[name] for p in pieces[identity]]), whole[name])


@pytest.mark.parametrize("kind", [list, np.array, torch.tensor])
def test_any_form_of_sample_is_cut_and_positions_begin_anew(kind: Any) -> None:
    row = kind([1, 2, 3, 4, 5])
    for sample in (row, (row, row), {"input_ids": row, "position_ids": row, "identity": 7}):
        split = SplitDocuments([sample], 3, lengths=[5])
        pieces = [split[0], split[1]]
        if isinstance(sample, dict):
            assert [piece["identity"] for piece in pieces] == [7, 7]
            assert [list(piece["position_ids"]) for piece in pieces] == [[1, 2], [0, 1, 2]]
            pieces = [piece["input_ids"] for piece in pieces]
        if isinstance(sample, tuple):
            assert all(list(labels) == list(tokens) for tokens, labels in pieces)
            pieces = [tokens for tokens, _ in pieces]
        assert [list(piece) for piece in pieces] == [[1, 2], [3, 4, 5]]


def test_what_cannot_be_cut_is_refused_rather_than_repeated() -> None:
    class Opaque:
        input_ids = (1, 2, 3, 4, 5)

    split = SplitDocuments([Opaque()], 3, lengths=[5], length_fn=lambda sample: 5)
    with pytest.raises(SampleError, match="these are not one sequence of input_ids in a Opaque"):
        split[0]
