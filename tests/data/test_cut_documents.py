"""Long documents are split or truncated as the user chose, and no token is lost by it silently."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from documents import Documents
from evenstep.data import CutDocuments
from evenstep.errors import ConfigurationError, SampleError

DOCUMENTS = Documents(40, prompts=True)


@given(st.integers(1, 300))
def test_the_pieces_of_a_document_are_all_of_it_in_order(limit: int) -> None:
    cut = CutDocuments(DOCUMENTS, limit, "split", lengths=DOCUMENTS.lengths)
    pieces: dict[int, list[Any]] = {}
    for index in range(len(cut)):
        sample = cut[index]
        assert 1 <= len(sample["input_ids"]) == len(sample["labels"]) <= limit
        pieces.setdefault(sample["identity"], []).append(sample)
    for identity in range(len(DOCUMENTS)):
        whole = DOCUMENTS[identity]
        for name in ("input_ids", "labels"):
            assert torch.equal(torch.cat([p[name] for p in pieces[identity]]), whole[name])
        sizes = [len(p["input_ids"]) for p in pieces[identity]]
        assert len(sizes) == -(-len(whole["input_ids"]) // limit)
        assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("lengths", [None, DOCUMENTS.lengths])
def test_a_truncated_document_keeps_its_first_tokens(lengths: Any) -> None:
    cut = CutDocuments(DOCUMENTS, 20, "truncate", lengths=lengths)
    assert len(cut) == len(DOCUMENTS)
    for index in range(len(cut)):
        whole, sample = DOCUMENTS[index], cut[index]
        assert torch.equal(sample["input_ids"], whole["input_ids"][:20])
        assert torch.equal(sample["labels"], whole["labels"][:20])


@pytest.mark.parametrize("kind", [list, np.array, torch.tensor])
def test_any_form_of_sample_is_cut(kind: Any) -> None:
    row = kind([1, 2, 3, 4, 5])
    for sample in (row, {"input_ids": row, "labels": row, "identity": 7}):
        cut = CutDocuments([sample], 3, "split", lengths=[5])
        pieces = [cut[0], cut[1]]
        if isinstance(sample, dict):
            assert [piece["identity"] for piece in pieces] == [7, 7]
            assert all(list(piece["labels"]) == list(piece["input_ids"]) for piece in pieces)
            pieces = [piece["input_ids"] for piece in pieces]
        assert [list(piece) for piece in pieces] == [[1, 2], [3, 4, 5]]


def test_what_cannot_be_cut_is_refused_rather_than_repeated() -> None:
    class Opaque:
        input_ids = (1, 2, 3, 4, 5)

    cut = CutDocuments([Opaque()], 3, "split", lengths=[5], length_fn=lambda sample: 5)
    with pytest.raises(SampleError, match="it is a Opaque of 5 tokens, and only mappings"):
        cut[0]


@pytest.mark.parametrize("kind", [list, torch.tensor])
def test_positions_of_each_piece_count_from_its_beginning(kind: Any) -> None:
    sample = {"input_ids": [1, 2, 3, 4, 5], "position_ids": kind([0, 1, 2, 3, 4])}
    cut = CutDocuments([sample], 3, "split", lengths=[5])
    assert [cut[i]["position_ids"].tolist() for i in range(2)] == [[0, 1], [0, 1, 2]]


def test_what_is_wrong_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="needs lengths="):
        CutDocuments(DOCUMENTS, 20, "split")
    with pytest.raises(ConfigurationError, match="over_long='cut' must be one of error, split"):
        CutDocuments(DOCUMENTS, 20, "cut")
    with pytest.raises(ConfigurationError, match="3 lengths for a dataset of 40"):
        CutDocuments(DOCUMENTS, 20, "split", lengths=[1, 2, 3])
    with pytest.raises(SampleError, match=r"document \d+ has .* over the limit of 20"):
        CutDocuments(DOCUMENTS, 20, "error", lengths=DOCUMENTS.lengths)
    long = int(DOCUMENTS.lengths.argmax())
    with pytest.raises(SampleError, match="over max_tokens=20"):
        CutDocuments(DOCUMENTS, 20, "error")[long]
    stale = CutDocuments(DOCUMENTS, 20, "truncate", lengths=DOCUMENTS.lengths + 1)
    with pytest.raises(SampleError, match=r"document 3 has .* count them again"):
        stale[3]


def test_another_cut_is_another_dataset() -> None:
    cuts = {CutDocuments(DOCUMENTS, n, "truncate").fingerprint for n in (20, 21)}
    assert len(cuts) == 2
