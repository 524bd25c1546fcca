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
from evenstep.errors import CollateError

VOCABULARY = 9
# Per document: its tokens, how many first labels are masked, whether labels are a copy of the
# tokens, shifted by the dataset, or classes.
documents = st.lists(
    st.tuples(
        st.lists(st.integers(1, VOCABULARY), min_size=1, max_size=8),
        st.integers(0, 9),
        st.sampled_from(["copy", "shifted", "classes"]),
    ),
    min_size=1,
    max_size=5,
)


def build(docs: Any) -> tuple[list[dict[str, Any]], int]:
    samples = []
    for tokens, masked, kind in docs:
        labels = {
            "copy": tokens,
            "shifted": [*tokens[1:], -100],
            "classes": [token % 2 for token in tokens],
        }[kind]
        labels = [-100 if i < masked else label for i, label in enumerate(labels)]
        samples.append({"input_ids": tokens, "labels": labels})
    return samples, int(Measure()(samples, [""] * len(samples))[:, 1].sum())


@given(documents, st.sampled_from(["right", "left"]), st.sampled_from([None, 4]))
def test_no_false_alarm_for_padding(docs, side, multiple):
    samples, expected = build(docs)
    check_supervised(PadCollator(side=side, pad_to_multiple_of=multiple)(samples), expected, "x")


@given(documents)
def test_no_false_alarm_for_left_padding_by_a_collator_that_keeps_first_labels(docs):
    samples, expected = build(docs)
    batch = PadCollator(side="left")(samples)
    for row, sample in zip(batch["labels"], samples):
        row[len(row) - len(sample["labels"]) :] = torch.tensor(sample["labels"])
    check_supervised(batch, expected, "x")


@given(documents, st.integers(0, 2**31))
def test_more_than_one_label_masked_after_measuring_is_always_noticed(docs, seed):
    samples, expected = build([(t, 1, "copy") for t, _, _ in docs])
    batch = PadCollator()(samples)
    places = (batch["labels"] != -100).nonzero()
    order = torch.randperm(len(places), generator=torch.Generator().manual_seed(seed))
    for row, column in places[order[: 1 + seed % 3]]:
        batch["labels"][row, column] = -100
        with pytest.raises(CollateError):
            check_supervised(batch, expected, "x")


def test_the_error_names_the_step_both_counts_and_every_remedy():
    samples = [{"input_ids": [1, 2, 3, 4], "labels": [-100, 2, 3, 4]}]
    batch = PadCollator()(samples)
    batch["labels"][0, 1] = -100
    with pytest.raises(CollateError) as caught:
        check_supervised(batch, 3, "step 12 on rank 1")
    for words in (
        "step 12 on rank 1",
        "hold 2 supervised",
        "hold 3",
        "SampleCounts(supervised=",
        "loss_scaling='sample'",
        "in the dataset",
    ):
        assert words in str(caught.value)


def test_unlabelled_samples_labelled_by_the_collate_function_pass():
    transformers = pytest.importorskip("transformers")
    samples = [{"input_ids": [5, 6, 7]}, {"input_ids": [8, 9]}]
    expected = int(Measure()(samples, ["", ""])[:, 1].sum())
    padded = PadCollator()(samples)
    padded["labels"] = padded["input_ids"].masked_fill(padded["attention_mask"] == 0, -100)
    check_supervised(padded, expected, "x")
    check_supervised(PackCollator()(samples), expected, "x")
    flat = transformers.DataCollatorWithFlattening(return_tensors="pt")(samples)
    check_supervised(flat, expected, "x")


def test_counting_without_first_labels_passes_where_labels_are_no_copy():
    samples = [{"input_ids": [1, 2, 3], "labels": [7, 8, 9]}, {"input_ids": [4], "labels": [6]}]
    measure = Measure(supervised_fn=lambda s: sum(label != -100 for label in s["labels"][1:]))
    expected = int(measure(samples, ["", ""])[:, 1].sum())
    check_supervised(PadCollator()(samples), expected, "x")


def test_packing_that_masks_a_shifted_first_label_is_noticed():
    samples, expected = build([([1, 2, 3], 0, "shifted"), ([4, 5], 0, "shifted")])
    check_supervised(PackCollator(mask_first_label=False)(samples), expected, "x")
    with pytest.raises(CollateError, match="mask_first_label=False"):
        check_supervised(PackCollator()(samples), expected, "x")


@pytest.mark.parametrize(
    "batch", [{"input_ids": torch.ones(2, 3)}, {"labels": ["a"]}, torch.ones(2), (1, 2), None]
)
def test_batches_without_a_tensor_of_labels_pass(batch):
    check_supervised(batch, 5, "x")


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
