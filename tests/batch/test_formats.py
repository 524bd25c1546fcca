"""A packed batch in the forms of Hugging Face and torchtitan, and as masks."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention.flex_attention import create_block_mask, create_mask

from evenstep.batch import PackCollator
from evenstep.batch.formats import attention_mask, block_mask, to_hugging_face, to_torchtitan
from evenstep.errors import CollateError
from tiny_causal import documents

lengths = st.lists(st.integers(1, 30), min_size=1, max_size=6)
padding = st.sampled_from([{}, {"pad_documents_to_multiple_of": 3}, {"pad_to_multiple_of": 7}])


def packed(lengths: list[int], **options: Any) -> dict[str, Any]:
    return PackCollator(**options)([[1] * length for length in lengths])


def bounds_of(batch: dict[str, Any]) -> torch.Tensor:
    return batch.get("cu_seqlens_padded", batch["cu_seqlens"])


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.booleans())
def test_it_equals_what_transformers_own_collator_gives(lengths, seq_idx):
    transformers = pytest.importorskip("transformers")
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


def test_padding_belongs_to_the_document_before_it():
    for options in ({"pad_documents_to_multiple_of": 4}, {"pad_to_multiple_of": 8}):
        batch = packed([3, 2], **options)
        assert torch.equal(to_hugging_face(batch)["cu_seq_lens_q"], bounds_of(batch))


@pytest.mark.parametrize(
    ("sample", "options", "said"),
    [
        (
            {"input_ids": [1, 2], "labels": [2, -100]},
            {"mask_first_label": False},
            "shift labels themselves",
        ),
        ({"input_ids": [1, 2, 3], "loss_mask": [0, 0.5, 1]}, {}, "leave loss_mask out"),
    ],
)
def test_what_a_model_of_hugging_face_would_misread_is_refused(sample, options, said):
    with pytest.raises(CollateError, match=said):
        to_hugging_face(PackCollator(**options)([sample]))


def test_torchtitan_takes_positions_and_the_labels_of_the_next_tokens():
    samples = [
        {"input_ids": [1, 2, 3], "labels": [1, -100, 3], "kinds": [[3], [4], [5]]},
        {"input_ids": [4], "labels": [4], "kinds": [[6]]},
        {"input_ids": [5, 6], "labels": [5, 6], "kinds": [[7], [8]]},
    ]
    inputs, labels = to_torchtitan(PackCollator(pad_to_multiple_of=8)(samples))
    assert inputs["input"].tolist() == [[1, 2, 3, 4, 5, 6, 0, 0]]
    assert inputs["positions"].tolist() == [[0, 1, 2, 0, 0, 1, 0, 1]]
    assert inputs["kinds"][0, :6].tolist() == [[3], [4], [5], [6], [7], [8]]
    assert labels.tolist() == [[-100, 3, -100, -100, 6, -100, -100, -100]]
    assert inputs["input"].dtype == inputs["positions"].dtype == labels.dtype == torch.int64
    shifted = PackCollator(mask_first_label=False)([{"input_ids": [1, 2], "labels": [2, 7]}])
    assert to_torchtitan(shifted, labels_shifted=True)[1].tolist() == [[2, 7]]


@pytest.mark.parametrize("positions", [[1, 2], [0, 0]])
def test_positions_that_do_not_tell_documents_are_refused(positions):
    batch = PackCollator()([{"input_ids": [1, 2], "position_ids": positions}])
    with pytest.raises(CollateError, match="not 0 exactly where a document begins"):
        to_torchtitan(batch)


# Masks


@given(lengths, padding)
def test_a_token_attends_to_itself_and_to_what_precedes_it_in_its_document(lengths, options):
    batch = packed(lengths, **options)
    bounds = bounds_of(batch).tolist()
    total = bounds[-1]
    truth = torch.zeros(total, total, dtype=torch.bool)
    for start, end in pairwise(bounds):
        for token in range(start, end):
            truth[token, start : token + 1] = True
    mask = attention_mask(batch)
    assert mask.dtype == torch.bool
    assert torch.equal(mask, truth[None, None])


@settings(max_examples=10)
@given(lengths, padding, st.integers(2, 12))
def test_the_block_mask_is_the_one_that_all_pairs_of_tokens_give(lengths, options, block_size):
    batch = packed(lengths, **options)
    total = batch["input_ids"].shape[1]
    ours = block_mask(batch, block_size=block_size)
    theirs = create_block_mask(
        ours.mask_mod, None, None, total, total, device="cpu", BLOCK_SIZE=block_size
    )
    dense = create_mask(ours.mask_mod, 1, 1, total, total, device="cpu")
    assert torch.equal(dense, attention_mask(batch))
    assert ours.shape == theirs.shape
    assert ours.BLOCK_SIZE == theirs.BLOCK_SIZE
    for name in ("kv", "full_kv", "q", "full_q"):
        for part in ("num_blocks", "indices"):
            mine, other = (getattr(mask, f"{name}_{part}") for mask in (ours, theirs))
            assert mine.dtype == other.dtype
            assert torch.equal(mine, other), f"{name}_{part}"
