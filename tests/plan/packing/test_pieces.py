"""Documents cut into pieces: every token once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenstep.errors import ConfigurationError, SampleError
from evenstep.plan.packing.pieces import cut_long

LENGTHS = st.lists(st.integers(1, 100), max_size=30).map(lambda v: np.array(v, np.int64))


@settings(max_examples=50)
@given(LENGTHS, st.integers(1, 60))
def test_split_makes_the_fewest_and_most_equal_pieces_that_cover_every_token(
    lengths: np.ndarray, limit: int
) -> None:
    pieces = cut_long(lengths, limit, "split")
    assert (pieces.lengths <= limit).all()
    for document, length in enumerate(lengths.tolist()):
        mine = pieces.documents == document
        begins, ends = pieces.begins[mine], pieces.ends[mine]
        assert begins[0] == 0
        assert ends[-1] == length
        assert (begins[1:] == ends[:-1]).all()
        assert len(begins) == -(-length // limit)
        assert np.ptp(ends - begins) <= 1
    assert (np.diff(pieces.documents) >= 0).all()


@settings(max_examples=50)
@given(LENGTHS, st.integers(1, 60))
def test_truncate_keeps_the_beginning_of_every_document(lengths: np.ndarray, limit: int) -> None:
    pieces = cut_long(lengths, limit, "truncate")
    assert pieces.documents.tolist() == list(range(len(lengths)))
    assert not pieces.begins.any()
    assert pieces.ends.tolist() == np.minimum(lengths, limit).tolist()


@settings(max_examples=50)
@given(LENGTHS)
def test_error_passes_documents_up_to_the_limit_and_names_the_first_beyond(
    lengths: np.ndarray,
) -> None:
    longest = int(lengths.max(initial=1))
    assert len(cut_long(lengths, longest, "error")) == len(lengths)
    if longest > 1:
        first = int((lengths > longest - 1).argmax())
        with pytest.raises(SampleError, match=f"document {first} has {longest} tokens"):
            cut_long(lengths, longest - 1, "error")


def test_an_unknown_choice_is_refused_even_where_nothing_is_too_long() -> None:
    with pytest.raises(ConfigurationError, match="over_long='drop'"):
        cut_long(np.array([1]), 10, "drop")
