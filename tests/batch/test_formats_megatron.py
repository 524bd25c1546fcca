from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from drawn_documents import DRAWN, samples_of
from evenstep.batch import PackCollator
from evenstep.batch.formats import to_megatron
from evenstep.errors import CollateError

pytestmark = pytest.mark.usefixtures("without_megatron")

SAMPLES = [
    {"input_ids": [1, 2, 3], "labels": [-100, 2, 3]},
    {"input_ids": [4], "labels": [4]},
]


@given(DRAWN, st.sampled_from([None, 4]), st.sampled_from([None, 8]))
def test_every_token_is_asked_for_the_next_one_of_its_document(docs, each, whole):
    samples = samples_of(docs)
    batch = PackCollator(pad_documents_to_multiple_of=each, pad_to_multiple_of=whole)(samples)
    fields, _ = to_megatron(batch)
    starts = batch.get("cu_seqlens_padded", batch["cu_seqlens"]).tolist()
    expected = torch.full_like(fields["tokens"], -100)
    for start, sample in zip(starts, samples):
        for place, label in enumerate(sample["labels"][1:]):
            expected[0, start + place] = label
    assert torch.equal(fields["labels"], expected)
    assert torch.equal(fields["loss_mask"], (expected != -100).to(torch.float32))
    assert fields["tokens"] is batch["input_ids"]
    assert fields["position_ids"] is batch["position_ids"]
    assert fields["attention_mask"] is None


def test_padding_is_attended_to():
    batch = PackCollator(pad_documents_to_multiple_of=4)(SAMPLES)
    _, packed = to_megatron(batch)
    assert packed["cu_seqlens_q"].tolist() == packed["cu_seqlens_q_padded"].tolist() == [0, 4, 8]
    _, packed = to_megatron(PackCollator()(SAMPLES))
    assert packed["cu_seqlens_q"].tolist() == [0, 3, 4]
    assert packed["cu_seqlens_q_padded"] is None


def test_labels_shifted_by_the_dataset_are_kept_when_told_and_refused_when_not():
    samples = [{"input_ids": [1, 2], "labels": [2, -100]}, {"input_ids": [5], "labels": [-100]}]
    batch = PackCollator(mask_first_label=False)(samples)
    fields, _ = to_megatron(batch, labels_shifted=True)
    assert fields["labels"].tolist() == [[2, -100, -100]]
    assert fields["loss_mask"].tolist() == [[1, 0, 0]]
    with pytest.raises(CollateError, match=r"\[2, -100\].*labels_shifted=True"):
        to_megatron(batch)


def test_documents_that_context_parallel_ranks_cannot_share_are_refused():
    with pytest.raises(CollateError, match="pad_documents_to_multiple_of=4"):
        to_megatron(PackCollator()(SAMPLES), context_parallel_size=2)
    batch = PackCollator(pad_documents_to_multiple_of=4, pad_to_multiple_of=12)(SAMPLES)
    fields, _ = to_megatron(batch, context_parallel_size=2)
    assert fields["cu_seqlens_padded"].tolist() == [[0, 4, 8, 12]]
