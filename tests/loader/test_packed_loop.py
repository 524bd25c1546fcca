"""Loops that call a model of transformers with the batch as a packed loader yields it."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch

import evenstep
from evenstep.batch import PackCollator, to_hugging_face
from evenstep.errors import CollateError
from tiny_causal import documents

transformers = pytest.importorskip("transformers")

SAMPLES = documents([2 + 5 * i % 23 for i in range(40)])
SAMPLES = [s for s in SAMPLES if (s["labels"][1:] != -100).any()]


def positions_of(sample: Any, first: int) -> dict[str, Any]:
    return {**sample, "position_ids": first + torch.arange(len(sample["input_ids"]))}


def test_positions_that_hide_where_a_document_begins_are_refused():
    first, second = SAMPLES[:2]
    data = [positions_of(first, 0), positions_of(second, len(first["input_ids"]))]
    options: dict[str, Any] = {"batch_size": 2, "collate_fn": PackCollator()}
    with pytest.raises(CollateError, match="leave them out in the dataset, or give the field"):
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
    policy = evenstep.Even(max_tokens=64, packed=True)
    collate = PackCollator(mask_first_label=False)
    counts = evenstep.SampleCounts(supervised=lambda sample: len(sample["labels"]))
    with caplog.at_level(logging.WARNING, "evenstep"):
        for data, said in ((SAMPLES, 0), (labelled, 1)):
            options = {} if data is SAMPLES else {"collate_fn": collate, "length_fn": counts}
            list(evenstep.DataLoader(data, policy=policy, **options))
            found = [r for r in caplog.messages if "to_hugging_face(batch, model=model)" in r]
            assert len(found) == said


def test_several_labels_for_a_sample_are_refused():
    samples = [{"input_ids": s["input_ids"], "labels": [1.0, 0.0]} for s in SAMPLES]
    policy = evenstep.Even(max_tokens=64, packed=True)
    with pytest.raises(CollateError, match="packed=False"):
        list(evenstep.DataLoader(samples, policy=policy))
    for batch, step in evenstep.DataLoader(samples, policy=evenstep.Even(max_tokens=64)).steps():
        assert batch["labels"].shape == (step.samples, 2)
