from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.attention.flex_attention import create_block_mask, create_mask

from evenstep.batch import PackCollator
from evenstep.batch.formats import attention_mask, block_mask
from evenstep.errors import CollateError, ConfigurationError

lengths = st.lists(st.integers(1, 30), min_size=1, max_size=6)
padding = st.sampled_from([{}, {"pad_documents_to_multiple_of": 3}, {"pad_to_multiple_of": 7}])


def packed(lengths: list[int], **options: Any) -> dict[str, Any]:
    return PackCollator(**options)([[1] * length for length in lengths])


@given(lengths, padding)
def test_a_token_attends_to_itself_and_to_what_precedes_it_in_its_document(lengths, options):
    batch = packed(lengths, **options)
    bounds = batch.get("cu_seqlens_padded", batch["cu_seqlens"]).tolist()
    total = bounds[-1]
    truth = torch.zeros(total, total, dtype=torch.bool)
    for start, end in pairwise(bounds):
        for token in range(start, end):
            truth[token, start : token + 1] = True
    mask = attention_mask(batch)
    assert mask.dtype == torch.bool
    assert torch.equal(mask, truth[None, None])


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


def test_a_long_row_needs_no_mask_of_all_its_tokens():
    batch = packed([100_000, 1, 31_071])
    mask = block_mask(batch)
    blocks = 131_072 // 128
    assert mask.shape == (1, 1, 131_072, 131_072)
    assert mask.kv_indices.shape == (1, 1, blocks, blocks)
    # Of the first document's 781 whole blocks, each sees all before it in full.
    assert mask.full_kv_num_blocks[0, 0, :781].tolist() == list(range(781))
    # The 783rd lies wholly in the last document, which begins in the one before.
    assert mask.full_kv_num_blocks[0, 0, 782] == 0
    assert mask.kv_num_blocks[0, 0, 782] == 2


def test_what_cannot_become_a_mask_is_refused():
    batch = packed([3])
    with pytest.raises(ConfigurationError, match="block_size=1 must be at least 2"):
        block_mask(batch, block_size=1)
    for mask in (attention_mask, block_mask):
        with pytest.raises(CollateError, match=r"no document_ids .* PackCollator"):
            mask({"input_ids": batch["input_ids"]})
