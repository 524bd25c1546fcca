from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from evenstep.batch import PackCollator
from evenstep.batch.formats import to_hugging_face
from evenstep.errors import CollateError
from tiny_causal import documents

transformers = pytest.importorskip("transformers")


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.booleans())
def test_it_equals_what_transformers_own_collator_gives(lengths, seq_idx):
    samples = documents(lengths)
    theirs = transformers.DataCollatorWithFlattening(
        return_tensors="pt", return_flash_attn_kwargs=True, return_seq_idx=seq_idx
    )(samples)
    ours = to_hugging_face(PackCollator()(samples), seq_idx=seq_idx, use_cache=True)
    assert set(ours) == set(theirs)
    for name, value in theirs.items():
        assert type(ours[name]) is type(value)
        if isinstance(value, torch.Tensor):
            torch.testing.assert_close(ours[name], value, rtol=0, atol=0)
        else:
            assert ours[name] == value


def test_labels_that_a_model_would_shift_twice_are_refused():
    samples = [{"input_ids": [1, 2], "labels": [2, -100]}]
    with pytest.raises(CollateError, match="shift labels themselves"):
        to_hugging_face(PackCollator(mask_first_label=False)(samples))


def test_weights_of_tokens_are_refused():
    samples = [{"input_ids": [1, 2, 3], "loss_mask": [0, 0.5, 1]}]
    with pytest.raises(CollateError, match="leave loss_mask out"):
        to_hugging_face(PackCollator()(samples))
