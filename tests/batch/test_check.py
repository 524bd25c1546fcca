from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from evenstep.batch import (
    Measure,
    PackCollator,
    PadCollator,
    check_packed,
    check_supervised,
)
from evenstep.batch.check import without_padded_first
from evenstep.errors import CollateError

VOCABULARY = 9
# Per document: its tokens, and how many first labels are masked.
documents = st.lists(
    st.tuples(st.lists(st.integers(1, VOCABULARY), min_size=1, max_size=8), st.integers(0, 9)),
    min_size=1,
    max_size=5,
)
KINDS = st.sampled_from(["copy", "shifted", "classes"])
SAID = st.booleans()
"""Whether the reading is said, or is to be seen from the batch."""


def build(docs: Any, kind: str) -> tuple[list[dict[str, Any]], int]:
    """Samples whose labels are a copy of their tokens, shifted by the dataset, or classes; and how
    many of these a model counts that takes such labels."""
    samples = []
    for tokens, masked in docs:
        labels = {
            "copy": tokens,
            "shifted": [*tokens[1:], -100],
            "classes": [VOCABULARY + 1 + token % 2 for token in tokens],
        }[kind]
        labels = [-100 if i < masked else label for i, label in enumerate(labels)]
        samples.append({"input_ids": tokens, "labels": labels})
    return samples, counted(samples, reading(kind))


def reading(kind: str) -> str:
    return "causal" if kind == "copy" else "every"


def counted(samples: Any, labels: str) -> int:
    return int(Measure(labels=labels)(samples, [""] * len(samples))[:, 1].sum())


@given(documents, KINDS, st.sampled_from(["right", "left"]), st.sampled_from([None, 4]), SAID)
def test_no_false_alarm_for_padding(docs, kind, side, multiple, said):
    samples, expected = build(docs, kind)
    labels = reading(kind) if said or kind == "shifted" else None  # a row of one token is a copy
    batch = PadCollator(side=side, pad_to_multiple_of=multiple)(samples)
    batch = without_padded_first(batch, labels)
    check_supervised(batch, expected, "x", labels)


def test_tokens_that_are_their_own_labels_stay_as_they_are():
    tokens = torch.tensor([[0, 0, 5, 6], [1, 2, 3, 4]])
    batch = {"input_ids": tokens, "labels": tokens, "attention_mask": (tokens > 0).long()}
    masked = without_padded_first(batch, "causal")
    assert masked["input_ids"].tolist() == [[0, 0, 5, 6], [1, 2, 3, 4]]
    assert masked["labels"].tolist() == [[0, 0, -100, 6], [1, 2, 3, 4]]


@given(documents, st.integers(0, 2**31))
def test_a_label_masked_after_measuring_is_always_noticed(docs, seed):
    samples, expected = build([(t, 1) for t, _ in docs], "copy")
    batch = PadCollator()(samples)
    places = (batch["labels"] != -100).nonzero()
    order = torch.randperm(len(places), generator=torch.Generator().manual_seed(seed))
    for row, column in places[order[: 1 + seed % 3]]:
        batch["labels"][row, column] = -100
        for labels in (None, "causal", "every"):
            with pytest.raises(CollateError):
                check_supervised(batch, expected, "x", labels)


@given(documents)
def test_one_count_is_accepted(docs):
    samples, causal = build(docs, "copy")
    batch, every = PadCollator()(samples), counted(samples, "every")
    check_supervised(batch, causal, "x")
    check_supervised(batch, causal, "x", "causal")
    check_supervised(batch, every, "x", "every")
    if causal == every:
        return
    for expected, labels in ((every, None), (every, "causal"), (causal, "every")):
        with pytest.raises(CollateError):
            check_supervised(batch, expected, "x", labels)


def test_labels_shifted_by_the_collate_function_are_seen_to_be():
    samples = [{"input_ids": [1, 2, 3, 4]}, {"input_ids": [5, 6]}]
    expected = counted(samples, "causal")
    batch = PadCollator()(samples)
    tokens, mask = batch["input_ids"], batch["attention_mask"]
    labels = tokens.masked_fill(mask == 0, -100)
    check_supervised({"input_ids": tokens, "labels": labels}, expected, "x")
    shifted = {"input_ids": tokens[:, :-1], "labels": labels[:, 1:]}
    check_supervised(shifted, expected, "x")
    with pytest.raises(CollateError, match="pass labels='causal' or labels='every'"):
        check_supervised(shifted, expected, "x", "causal")  # the model would shift them again
    check_supervised(shifted, expected, "x", "every")


def test_packing_that_masks_a_shifted_first_label_is_noticed():
    samples, expected = build([([1, 2, 3], 0), ([4, 5], 0)], "shifted")
    check_supervised(PackCollator(mask_first_label=False)(samples), expected, "x", "every")
    with pytest.raises(CollateError, match="leave mask_first_label out of PackCollator"):
        check_supervised(PackCollator()(samples), expected, "x", "every")


def test_fractions_count_as_the_numbers_they_are_or_as_one_for_each_sample():
    mixed = {"pixel_values": torch.zeros(2, 3), "labels": torch.tensor([[0.3, 0.7], [1.0, 0.0]])}
    check_supervised(mixed, 2, "x", None, 2)  # of two samples with one label each
    check_supervised(mixed, 4, "x", None, 2)  # of samples with two numbers each
    with pytest.raises(CollateError):
        check_supervised(mixed, 3, "x", None, 2)
    masked = {"input_ids": torch.ones(2, 3), "labels": torch.tensor([[0.5, -100, 1], [2, 3, -100]])}
    check_supervised(masked, 4, "x", None, 2)
    with pytest.raises(CollateError):
        check_supervised(masked, 6, "x", None, 2)


@pytest.mark.parametrize(
    ("shape", "fits"), [((2, 50), True), ((1, 101), True), ((101,), True), ((2, 51), False)]
)
def test_a_batch_that_pads_what_was_planned_to_be_packed_is_refused(shape, fits):
    batch = {"input_ids": torch.zeros(shape, dtype=torch.int64)}
    check_packed([batch], 100, "step 3")  # not a mapping: nothing is known of it
    if fits:
        check_packed(batch, 100, "step 3")
        return
    with pytest.raises(CollateError, match="step 3: the batch has 2 rows of 51 tokens, over max_"):
        check_packed(batch, 100, "step 3")
