"""Data sets of samples that were padded to one length when they were tokenized."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import evenstep
from evenstep.errors import SampleError

COUNT = 40
HOLED = {"input_ids": [5, 6, 7, 8, 0], "attention_mask": [1, 0, 1, 1, 0]}


def test_a_mask_with_a_hole_is_padded_as_it_is():
    data = [HOLED, {"input_ids": [3, 4], "attention_mask": [1, 1]}]
    ((batch, step),) = evenstep.DataLoader(data, batch_size=2).steps()
    assert batch["attention_mask"].tolist() == [[1, 0, 1, 1], [1, 1, 0, 0]]
    assert (step.tokens, step.supervised_tokens) == (6, 2 + 1)


@pytest.mark.parametrize("bad", [HOLED, {"input_ids": [1, 2], "attention_mask": [0, 0]}])
def test_a_mask_that_cannot_be_packed_names_its_sample(bad):
    good = {"input_ids": [3, 4, 0], "attention_mask": [1, 1, 0]}
    data = [good] * 8 + [bad]
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
