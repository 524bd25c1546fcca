"""Loops that call a model of transformers with the batch as a packed loader yields it."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch

import evenstep
from evenstep.batch import PackCollator, attention_mask, to_hugging_face
from evenstep.errors import CollateError
from tiny_causal import documents, gradient, tiny_qwen

transformers = pytest.importorskip("transformers")

SAMPLES = documents([2 + 5 * i % 23 for i in range(40)])
SAMPLES = [s for s in SAMPLES if (s["labels"][1:] != -100).any()]
FLATTENING = transformers.DataCollatorWithFlattening(return_tensors="pt")
LISTS = [{name: value.tolist() for name, value in sample.items()} for sample in SAMPLES]
EVEN = {"policy": evenstep.Even(max_tokens=64, packed=True)}
PADDED = PackCollator(pad_documents_to_multiple_of=4, pad_to_multiple_of=16)


def truth_of(model: Any, samples: list[Any]) -> torch.Tensor:
    """The gradient of the mean loss of documents one by one."""
    total = sum(int((s["labels"][1:] != -100).sum()) for s in samples)
    for sample in samples:
        one = {name: value[None] for name, value in sample.items()}
        count = int((sample["labels"][1:] != -100).sum())
        (model(**one).loss * count / total).backward()
    return gradient(model)


@pytest.mark.parametrize(
    ("data", "options", "attention"),
    [
        (SAMPLES, EVEN, "eager"),
        (SAMPLES, {**EVEN, "collate_fn": PADDED}, "sdpa"),
        (LISTS, {"batch_size": 4, "collate_fn": FLATTENING}, "sdpa"),
    ],
    ids=["even", "padded", "flattening"],
)
def test_documents_do_not_see_each_other(data, options, attention):
    model = tiny_qwen(attn_implementation=attention).double()
    assert model.config.use_cache
    seen = 0
    for batch, step in evenstep.DataLoader(data, **options).steps():
        (model(**batch).loss * step.loss_scale).backward()
        found, wanted = gradient(model), truth_of(model, [SAMPLES[i] for i in step.indices])
        assert (found - wanted).norm() / wanted.norm() < 1e-6
        seen += step.samples
    assert seen == len(SAMPLES)


def test_padded_batches_and_masks_of_the_users_own_stay_as_they_are():
    policy = evenstep.Even(max_tokens=64)
    assert all("use_cache" not in batch for batch in evenstep.DataLoader(SAMPLES, policy=policy))

    def masked(samples: list[Any]) -> Any:
        row = PackCollator()(samples)
        return {**row, "attention_mask": attention_mask(row)}

    loader = evenstep.DataLoader(SAMPLES, **EVEN, collate_fn=masked)
    assert all("use_cache" not in batch for batch in loader)


def positions_of(sample: Any, first: int) -> dict[str, Any]:
    return {**sample, "position_ids": first + torch.arange(len(sample["input_ids"]))}


def test_positions_that_hide_where_a_document_begins_are_refused():
    first, second = SAMPLES[:2]
    data = [positions_of(first, 0), positions_of(second, len(first["input_ids"]))]
    options: dict[str, Any] = {"batch_size": 2, "collate_fn": PackCollator()}
    with pytest.raises(CollateError, match="leave them out in the dataset, or name them"):
        list(evenstep.DataLoader(data, **options))
    with pytest.raises(CollateError, match="do not count on by 1"):
        to_hugging_face(PackCollator()(data))
    without = [{**s, "places": s["position_ids"]} for s in data]
    for sample in without:
        del sample["position_ids"]
    ((batch, _),) = evenstep.DataLoader(without, **options).steps()
    assert batch["position_ids"][0].tolist().count(0) == 2
    others = [positions_of(first, 3), positions_of(second, 1)]
    ((batch, _),) = evenstep.DataLoader(others, **options).steps()
    assert torch.equal(batch["position_ids"][0], torch.cat([s["position_ids"] for s in others]))


def test_the_first_batch_says_what_to_call_for_an_encoder(caplog):
    labelled = [{**s, "labels": s["input_ids"] % 3} for s in SAMPLES]
    collate = PackCollator(mask_first_label=False)
    counts = evenstep.SampleCounts(supervised=lambda sample: len(sample["labels"]))
    with caplog.at_level(logging.WARNING, "evenstep"):
        for data, said in ((SAMPLES, 0), (labelled, 1)):
            options = {} if data is SAMPLES else {"collate_fn": collate, "length_fn": counts}
            list(evenstep.DataLoader(data, **EVEN, **options))
            found = [r for r in caplog.messages if "to_hugging_face(batch, model=model)" in r]
            assert len(found) == said


def test_several_labels_for_a_token_stay_as_they_are():
    labels = [torch.stack([s["input_ids"] % 2, s["input_ids"] % 3], 1) for s in SAMPLES]
    samples = [{"input_ids": s["input_ids"], "labels": each} for s, each in zip(SAMPLES, labels)]
    row = PackCollator()(samples)
    assert torch.equal(row["labels"][0], torch.cat(labels))
    with pytest.raises(CollateError, match="one label per token"):
        to_hugging_face(row)


@pytest.mark.parametrize("kind", ["numbers to predict", "one label for each sample"])
def test_other_labels_stay_as_they_are(kind):
    tokens = [sample["input_ids"] for sample in SAMPLES]
    labels = [each / 7 if kind == "numbers to predict" else len(each) % 5 for each in tokens]
    data = [{"input_ids": one, "labels": other} for one, other in zip(tokens, labels)]
    for batch, step in evenstep.DataLoader(data, **EVEN).steps():
        wanted = [labels[i] for i in step.indices]
        if kind == "numbers to predict":
            assert torch.equal(batch["labels"][0], torch.cat(wanted))
        else:
            assert batch["labels"].tolist() == wanted
        assert step.supervised_tokens == batch["labels"].numel()


def test_several_labels_for_a_sample_are_refused():
    samples = [{"input_ids": s["input_ids"], "labels": [1.0, 0.0]} for s in SAMPLES]
    with pytest.raises(CollateError, match="packed=False"):
        list(evenstep.DataLoader(samples, **EVEN))
    for batch, step in evenstep.DataLoader(samples, policy=evenstep.Even(max_tokens=64)).steps():
        assert batch["labels"].shape == (step.samples, 2)
