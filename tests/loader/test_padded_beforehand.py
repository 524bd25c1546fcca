"""Data sets of samples that were padded to one length when they were tokenized."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import default_collate

import evenstep
from evenstep.errors import SampleError
from tiny_causal import gradient, tiny_qwen

WIDTH, COUNT, VOCABULARY = 24, 40, 13
LENGTHS = [1 + (7 * i) % (WIDTH - 1) for i in range(COUNT)]


def tokens_of(index: int) -> torch.Tensor:
    made = torch.Generator().manual_seed(index)
    return torch.randint(1, VOCABULARY, (LENGTHS[index],), generator=made)


def padded(index: int, side: str, labels: bool) -> dict[str, torch.Tensor]:
    tokens = tokens_of(index)
    room = WIDTH - len(tokens)
    sides = (0, room) if side == "right" else (room, 0)

    def filled(values: torch.Tensor, fill: int) -> torch.Tensor:
        return torch.nn.functional.pad(values, sides, value=fill)

    sample = {
        "input_ids": filled(tokens, 0),
        "attention_mask": filled(torch.ones_like(tokens), 0),
        "index": torch.tensor(index),
    }
    if labels:
        sample["labels"] = filled(tokens.where(tokens % 3 > 0, -100), -100)
    return sample


def loss_of(model: Any, batch: Mapping[str, Any]) -> torch.Tensor:
    """As a loop computes it that makes the labels itself, where there are none."""
    tokens, mask = batch["input_ids"], batch.get("attention_mask")
    labels = batch.get("labels")
    if labels is None:
        labels = tokens if mask is None else tokens.masked_fill(mask == 0, -100)
    options = {} if "position_ids" not in batch else {"position_ids": batch["position_ids"]}
    out = model(input_ids=tokens, attention_mask=mask, use_cache=False, **options).logits
    return cross_entropy(out[:, :-1].flatten(0, 1), labels[:, 1:].flatten())


def truth_of(model: Any, indices: Any, *, labels: bool) -> tuple[torch.Tensor, int]:
    """The gradient of samples one by one, without padding; and their supervised tokens."""
    supervised = 0
    for index in indices:
        tokens = tokens_of(index)
        kept = (tokens.where(tokens % 3 > 0, -100) if labels else tokens)[1:]
        logits = model(input_ids=tokens[None], use_cache=False).logits[0, :-1]
        cross_entropy(logits, kept, reduction="sum").backward()
        supervised += int((kept != -100).sum())
    return gradient(model) / max(supervised, 1), supervised


def relative_error(value: torch.Tensor, truth: torch.Tensor) -> float:
    return float((value - truth).norm() / truth.norm())


POLICIES = {
    "even": evenstep.Even(max_tokens=96),
    "budget": evenstep.TokenBudget(max_tokens=96),
    "fixed": evenstep.FixedBatch(4),
    "packed": evenstep.Even(max_tokens=96, packed=True),
}


@pytest.mark.parametrize("labels", [True, False], ids=["labels", "no-labels"])
@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("name", list(POLICIES))
def test_batches_are_those_of_the_real_tokens(name, side, labels):
    model = tiny_qwen(attn_implementation="sdpa").double()
    data = [padded(i, side, labels) for i in range(COUNT)]
    seen: list[int] = []
    for batch, step in evenstep.DataLoader(data, policy=POLICIES[name]).steps():
        seen += step.indices
        wanted, supervised = truth_of(model, step.indices, labels=labels)
        assert step.tokens == sum(LENGTHS[i] for i in step.indices)
        assert step.supervised_tokens == supervised
        assert step.padded_tokens == batch["input_ids"].numel()
        if supervised:
            (loss_of(model, batch) * step.loss_scale).backward()
            assert relative_error(gradient(model), wanted) < 1e-6
    assert sorted(seen) == list(range(COUNT))


@pytest.mark.parametrize("labels", [True, False], ids=["labels", "no-labels"])
def test_a_collate_function_of_the_users_gets_samples_as_they_are(labels):
    model = tiny_qwen(attn_implementation="sdpa").double()
    data = [padded(i, "right", labels) for i in range(COUNT)]
    given: list[Any] = []

    def collate(samples: list[Any]) -> Any:
        given.extend(samples)
        return default_collate(samples)

    loader = evenstep.DataLoader(data, policy=evenstep.Even(max_tokens=96), collate_fn=collate)
    for batch, step in loader.steps():
        wanted, supervised = truth_of(model, step.indices, labels=labels)
        assert (step.tokens, step.supervised_tokens) == (WIDTH * len(step.indices), supervised)
        if supervised:
            (loss_of(model, batch) * step.loss_scale).backward()
            assert relative_error(gradient(model), wanted) < 1e-6
    assert all(len(sample["input_ids"]) == WIDTH for sample in given)


def test_the_dataset_keeps_its_samples():
    data = [padded(i, "left", True) for i in range(COUNT)]
    for _ in evenstep.DataLoader(data, policy=POLICIES["even"]).steps():
        pass
    assert all(len(sample["input_ids"]) == WIDTH for sample in data)


HOLED = {"input_ids": [5, 6, 7, 8, 0], "attention_mask": [1, 0, 1, 1, 0]}


def test_a_mask_with_a_hole_is_padded_as_it_is():
    data = [HOLED, {"input_ids": [3, 4], "attention_mask": [1, 1]}]
    ((batch, step),) = evenstep.DataLoader(data, batch_size=2).steps()
    assert batch["attention_mask"].tolist() == [[1, 0, 1, 1], [1, 1, 0, 0]]
    assert (step.tokens, step.supervised_tokens) == (6, 2 + 1)


@pytest.mark.parametrize("bad", [HOLED, {"input_ids": [1, 2], "attention_mask": [0, 0]}])
def test_a_mask_that_cannot_be_packed_names_its_sample(bad):
    data = [padded(i, "right", False) for i in range(8)] + [{**bad, "index": 8}]
    policy = evenstep.Even(max_tokens=96, packed=True)
    with pytest.raises(SampleError, match=r"sample 8.*attention_mask"):
        list(evenstep.DataLoader(data, policy=policy))
    faults = evenstep.Faults(skip_bad_samples=1)
    loader = evenstep.DataLoader(data, policy=policy, faults=faults)
    assert sum(step.samples for _, step in loader.steps()) == 8
    assert [bad.index for bad in loader.skipped] == [8]


def test_what_a_collate_function_pads_beforehand_is_cut_too():
    """Its rows are prepared one by one; both of its texts have one length."""
    texts = [
        {"source": [3] * (1 + i % 5), "target": list(range(2, 3 + i % 7))} for i in range(COUNT)
    ]

    def collate(rows: list[Any]) -> dict[str, torch.Tensor]:
        def filled(name: str, fill: int) -> torch.Tensor:
            return torch.tensor([row[name] + [fill] * (8 - len(row[name])) for row in rows])

        tokens = filled("source", 0)
        mask = (tokens != 0).long()
        return {"input_ids": tokens, "attention_mask": mask, "labels": filled("target", -100)}

    policy = evenstep.Even(max_tokens=40)
    for batch, step in evenstep.DataLoader(texts, policy=policy, collate_fn=collate).steps():
        for row, index in enumerate(step.indices):
            kept = batch["labels"][row]
            assert kept[kept != -100].tolist() == texts[index]["target"]
            real = batch["attention_mask"][row] != 0
            assert batch["input_ids"][row][real].tolist() == texts[index]["source"]
