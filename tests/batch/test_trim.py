from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from evenstep.batch.labels import as_array
from evenstep.batch.trim import Trim
from evenstep.errors import SampleError

MAKES = {"list": list, "array": np.array, "tensor": torch.tensor}


def plain(sample: dict[str, Any]) -> dict[str, Any]:
    return {name: as_array(value).tolist() for name, value in sample.items()}


@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=12),
    st.integers(0, 5),
    st.integers(0, 5),
    st.sampled_from(sorted(MAKES)),
)
def test_a_padded_sample_becomes_what_it_was(tokens, before, after, make):
    real = {
        "input_ids": tokens,
        "attention_mask": [1] * len(tokens),
        "labels": [-100, *tokens[1:]],
        "token_type_ids": [1] * len(tokens),
        "weights": [[0.5, float(token)] for token in tokens],
        "position_ids": list(range(len(tokens))),
    }
    fills: dict[str, Any] = {"labels": -100, "weights": [0.0, 0.0], "token_type_ids": 1}
    padded = {}
    for name, values in real.items():
        fill = fills.get(name, 0)
        padded[name] = MAKES[make]([fill] * before + values + [fill] * after)
    padded["length"] = before + after
    cut = Trim(packed=True)(padded)
    assert type(cut["input_ids"]) is type(padded["input_ids"])
    assert cut.pop("length") == before + after
    assert plain(cut) == plain(real)


def test_a_sample_without_padding_is_the_same_object():
    for make in MAKES.values():
        sample = {"input_ids": make([1, 2]), "attention_mask": make([1, 1])}
        assert Trim()(sample) is sample
    for sample in ([1, 2], (torch.tensor([1, 2]), 0), {"input_ids": [1, 2]}):
        assert Trim()(sample) is sample


def test_nothing_that_may_be_content_is_cut():
    """Both texts of an encoder-decoder are padded to one length."""
    sample = {
        "input_ids": [5, 6, 0, 0, 0, 0],
        "attention_mask": [1, 1, 0, 0, 0, 0],
        "labels": [7, 8, 9, 4, -100, -100],
        "decoder_input_ids": [1, 7, 8, 9, 0, 0],
    }
    assert Trim()(sample) == {
        "input_ids": [5, 6, 0, 0],
        "attention_mask": [1, 1, 0, 0],
        "labels": [7, 8, 9, 4],
        "decoder_input_ids": [1, 7, 8, 9],
    }
    shorter = {**sample, "attention_mask": [1, 1, 1, 1, 1, 0]}
    assert Trim()(shorter)["labels"] == [7, 8, 9, 4, -100]
    to_the_left = {
        "input_ids": [0, 0, 5, 6],
        "attention_mask": [0, 0, 1, 1],
        "labels": [7, 8, -100, -100],
    }
    assert Trim()(to_the_left) == to_the_left


def test_fields_that_are_not_of_the_tokens_stay_whole():
    sample = {"input_ids": [5, 0], "attention_mask": [1, 0], "pixels": [[1], [1]], "words": "ab"}
    assert Trim(("pixels",))(sample) == {
        "input_ids": [5],
        "attention_mask": [1],
        "pixels": [[1], [1]],
        "words": "ab",
    }


def test_a_waveform_is_cut_by_its_mask():
    wave = torch.arange(1.0, 6.0)
    sample = {"input_values": wave, "attention_mask": torch.tensor([1, 1, 1, 0, 0]), "labels": [7]}
    cut = Trim()(sample)
    assert cut["input_values"].tolist() == [1, 2, 3]
    assert cut["attention_mask"].tolist() == [1, 1, 1]
    assert cut["labels"] == [7]


@pytest.mark.parametrize("make", MAKES.values(), ids=list(MAKES))
def test_a_mask_of_zeros_is_a_sample_without_tokens(make):
    with pytest.raises(SampleError, match="0 everywhere"):
        Trim()({"input_ids": make([1, 2]), "attention_mask": make([0, 0])})


@pytest.mark.parametrize("labels", [[3, 3, 0, 0], [0.5, 0.1, 0.0, 0.0], [[1], [1], [2], [2]]])
def test_labels_of_padding_that_count_are_refused(labels):
    sample = {"input_ids": [5, 6, 0, 0], "attention_mask": [1, 1, 0, 0], "labels": labels}
    with pytest.raises(SampleError, match=r"look like padding; set them to -100, or leave"):
        Trim()(sample)
    fill = [-100] if isinstance(labels[0], list) else -100
    assert Trim()({**sample, "labels": [*labels[:2], fill, fill]})["labels"] == labels[:2]
