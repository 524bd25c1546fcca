from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from drawn_documents import DRAWN, samples_of
from evenstep.batch import Measure, PackCollator, check_supervised
from evenstep.errors import CollateError

makes = st.sampled_from([list, np.array, torch.tensor, lambda x: np.array(x, np.int32)])


@given(DRAWN, makes, st.booleans(), st.booleans())
def test_cutting_at_cu_seqlens_gives_the_documents_back(docs, make, labelled, mask_first):
    samples = samples_of(docs, make, labelled=labelled)
    batch = PackCollator(mask_first_label=mask_first)(samples)
    bounds = batch["cu_seqlens"].tolist()
    assert batch["cu_seqlens"].dtype == batch["document_ids"].dtype == torch.int32
    assert bounds[0] == 0
    assert bounds[-1] == batch["input_ids"].shape[1]
    assert type(batch["max_seqlen"]) is int
    assert batch["max_seqlen"] == max(len(doc) for doc in docs)
    for i, sample in enumerate(samples):
        part = slice(bounds[i], bounds[i + 1])
        tokens = [int(token) for token in sample["input_ids"]]
        labels = [int(label) for label in sample.get("labels", tokens)]
        if mask_first:
            labels[0] = -100
        elif not labelled:
            labels = [*labels[1:], -100]  # as a data set has them that shifts labels
        assert batch["input_ids"][0, part].tolist() == tokens
        assert batch["labels"][0, part].tolist() == labels
        assert batch["position_ids"][0, part].tolist() == list(range(len(tokens)))
        assert batch["document_ids"][0, part].tolist() == [i] * len(tokens)


@given(DRAWN, makes, st.booleans())
def test_packed_labels_hold_exactly_the_measured_supervised_tokens(docs, make, labelled):
    samples = samples_of(docs, make, labelled=labelled)
    measured = Measure()(samples, [str(i) for i in range(len(samples))])
    batch = PackCollator()(samples)
    assert int((batch["labels"] != -100).sum()) == measured[:, 1].sum()
    check_supervised(batch, int(measured[:, 1].sum()), "here")


@given(DRAWN, st.booleans(), st.sampled_from([1, 4, 6]), st.sampled_from([None, 12]))
def test_padding_stands_behind_its_document_and_changes_nothing_else(docs, labelled, each, whole):
    samples = samples_of(docs, labelled=labelled)
    bare = PackCollator()(samples)
    batch = PackCollator(
        pad_documents_to_multiple_of=each,
        pad_to_multiple_of=whole,
        pad_token_id=77,
    )(samples)
    total = batch["input_ids"].shape[1]
    starts, real = batch["cu_seqlens_padded"].tolist(), batch["cu_seqlens"].tolist()
    assert batch["cu_seqlens_padded"].dtype == torch.int32
    assert total == starts[-1]
    assert all(bound % each == 0 for bound in starts)
    assert total % (whole or each) == 0
    assert total < sum(-(-len(doc) // each) * each for doc in docs) + (whole or 1)
    assert real[: len(docs) + 1] == bare["cu_seqlens"].tolist()
    # What fills up the row is a document without real tokens.
    assert real[len(docs) + 1 :] == [real[-1]] * (len(starts) - 1 - len(docs))
    assert len(starts) - 1 - len(docs) in (0, 1)
    assert batch["max_seqlen"] == max(end - start for start, end in pairwise(starts))
    padding = torch.ones(total, dtype=torch.bool)
    for i, (start, end) in enumerate(pairwise(starts)):
        assert batch["document_ids"][0, start:end].tolist() == [i] * (end - start)
        assert batch["position_ids"][0, start:end].tolist() == list(range(end - start))
        padding[start : start + real[i + 1] - real[i]] = False
    for name in ("input_ids", "labels"):
        assert torch.equal(batch[name][:, ~padding], bare[name])
        assert batch[name].dtype == bare[name].dtype
    assert (batch["input_ids"][0, padding] == 77).all()
    assert (batch["labels"][0, padding] == -100).all()
    supervised = int((bare["labels"] != -100).sum())
    check_supervised(batch, supervised, "here")


def test_other_fields_are_joined_stacked_or_listed():
    samples = [
        {
            "input_ids": [1] * n,
            "token_type_ids": np.full(n, n, np.int8),
            "features": torch.full((n, 2), n),
            "position_ids": [2 + i for i in range(n)],
            "attention_mask": [1] * n,
            "score": n / 2,
            "size": [n, 7, 7, 7, 7],
            "crop": torch.ones(n + 5),
            "name": str(n),
        }
        for n in (3, 2)
    ]
    batch = PackCollator()(samples)
    assert batch["token_type_ids"].tolist() == [[3, 3, 3, 2, 2]]
    assert batch["token_type_ids"].dtype == torch.int8
    assert batch["features"].shape == (1, 5, 2)
    assert batch["position_ids"].tolist() == [[2, 3, 4, 2, 3]]
    assert batch["score"].tolist() == [1.5, 1.0]
    assert batch["size"].tolist() == [[3, 7, 7, 7, 7], [2, 7, 7, 7, 7]]
    assert [crop.shape[0] for crop in batch["crop"]] == [8, 7]
    assert batch["name"] == ["3", "2"]
    assert "attention_mask" not in batch


@pytest.mark.parametrize(
    ("samples", "words"),
    [
        ([], ["without samples"]),
        ([{"x": [1]}], ["['x']", "input_ids", "collate_fn="]),
        ([([1, 2], 3)], ["tuple", "collate_fn="]),
        ([{"input_ids": torch.ones(1, 4)}], ["(1, 4)", "one-dimensional"]),
        ([{"input_ids": [1]}, {"input_ids": []}], ["sample 1", "no tokens"]),
        ([{"input_ids": np.array([1.0, np.nan])}], ["float64", "whole numbers"]),
        ([{"input_ids": [1, 2], "labels": [1]}], ["sample 0", "2 tokens", "(1,)"]),
        ([{"input_ids": [1], "labels": ["a"]}], ["'labels'", "no numbers"]),
        (
            [{"input_ids": [1, 0], "attention_mask": [1, 0]}],
            ["sample 0", "padded already", "tokenizer"],
        ),
        ([{"input_ids": [1], "cu_seqlens": [0, 1]}], ["'cu_seqlens'", "made by packing"]),
        (
            [{"input_ids": [1], "x": 1}, {"input_ids": [1]}],
            ["'x' of sample 0", "missing in sample 1", "collate_fn="],
        ),
        *(
            ([{"input_ids": [1, 2], "labels": labels}, {"input_ids": [1]}], ["do not show what"])
            for labels in ([1, 3], [2, -100], 1, [1.0, 2.0], [1], [[1, 2]], np.array([2, 3]))
        ),
        (
            [{"input_ids": [1] * n, "x": torch.ones(n, n)} for n in (1, 2)],
            ["'x'", "(1, 1), (2, 2)", "collate_fn="],
        ),
    ],
)
def test_groups_that_cannot_be_packed_name_the_culprit_and_the_remedy(samples, words):
    with pytest.raises(CollateError) as caught:
        PackCollator()(samples)
    for word in words:
        assert word in str(caught.value)
