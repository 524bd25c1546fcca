"""A batch is the same, tensor by tensor, whether its samples were made in a worker or not."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset

import evenstep


class Texts(Dataset[Any]):
    """Of 3 to 30 tokens, as mappings or as tuples."""

    def __init__(self, named: bool) -> None:
        self.named = named

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> Any:
        tokens = torch.full((3 + index * 7 % 28,), 1 + index)
        sample = {"input_ids": tokens, "labels": tokens.clone()}
        return sample if self.named else tuple(sample.values())


COLLATORS = {
    "packed": (True, evenstep.PackCollator()),
    "left": (True, evenstep.PadCollator(side="left")),
    "right": (True, evenstep.PadCollator()),
    "tuples": (False, evenstep.PadCollator(side="left", pad_values={"1": -100})),
}


def batches(named: bool, collate_fn: Any, **options: Any) -> list[tuple[Any, float]]:
    packed = isinstance(collate_fn, evenstep.PackCollator)
    loader = evenstep.DataLoader(
        Texts(named),
        policy=evenstep.Even(100, packed=packed),
        collate_fn=collate_fn,
        shuffle=True,
        seed=2,
        **options,
    )
    with_workers = [(batch, step.loss_scale) for batch, step in loader.steps()]
    loader.close()
    return with_workers


def tensors_of(batch: Any) -> dict[Any, torch.Tensor]:
    items = batch.items() if isinstance(batch, dict) else enumerate(batch)
    return {name: value for name, value in items if isinstance(value, torch.Tensor)}


@pytest.mark.parametrize(
    ("name", "labels"),
    [("packed", "causal"), ("left", "causal"), ("right", "every"), ("tuples", "every")],
)
def test_every_tensor_is_the_same_with_workers(name: str, labels: str) -> None:
    named, collate_fn = COLLATORS[name]
    here = batches(named, collate_fn, labels=labels)
    fork = {"num_workers": 1, "multiprocessing_context": "fork"}
    there = batches(named, collate_fn, labels=labels, **fork)
    for (mine, scale), (theirs, other) in itertools.zip_longest(here, there):
        assert scale == other
        one, two = tensors_of(mine), tensors_of(theirs)
        assert one.keys() == two.keys()
        for key in one:
            assert torch.equal(one[key], two[key]), key
