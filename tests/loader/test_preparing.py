"""A loader whose collate function prepares the samples."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

import evenstep
from evenstep.errors import SampleError
from evenstep.testing import assert_exact_resume
from loader_options import grouped
from row_collate import Collate

N = 40
POLICY = evenstep.Even(max_tokens=64)


class Rows(Dataset):  # type: ignore[type-arg]
    def __init__(self, bad: tuple[int, ...] = ()) -> None:
        self.bad = bad
        self.asked: list[int] = []

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> dict[str, Any]:
        self.asked.append(index)
        text = chr(200 + index) + "x" * (index * 7 % 13)
        images = "corrupt" if index in self.bad else list(range(index % 3))
        return {"text": text, "images": images}


class Fetching(Rows):
    def __getitems__(self, indices: list[int]) -> list[dict[str, Any]]:
        return [self[index] for index in indices]


class CorruptCollate(Collate):
    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        if any(row["images"] == "corrupt" for row in rows):
            raise OSError("image file is truncated")
        return super().__call__(rows)


class Drawing(Collate):
    """Draws from every source of random numbers."""

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        batch = super().__call__(rows)
        draws = [random.random(), np.random.random(), torch.rand(()).item()]
        batch["drawn"] = torch.tensor([draws] * len(batch["names"]))
        return batch


def told(loader: evenstep.DataLoader) -> list[int]:
    return [row[0].item() - 200 for batch in loader for row in batch["input_ids"]]


def test_a_row_that_cannot_be_prepared_is_named_or_skipped():
    data = Rows(bad=(5, 30))
    options: dict[str, Any] = {"policy": POLICY, "collate_fn": CorruptCollate()}
    with pytest.raises(SampleError, match=r"sample 5: collate_fn raised OSError: image f"):
        list(evenstep.DataLoader(data, **options))
    loader = evenstep.DataLoader(data, num_workers=1, **grouped(skip_bad_samples=2, **options))
    assert sorted(told(loader)) == sorted(set(range(N)) - {5, 30})
    assert [sample.index for sample in loader.skipped] == [5, 30]


def test_what_is_drawn_depends_on_the_row_alone_and_the_trainers_draws_stay():
    def drawn(workers: int) -> dict[int, Any]:
        collate_fn = evenstep.PreparingCollator(
            collate_fn=Drawing(), collator=evenstep.PadCollator(pad_token_id=7)
        )
        loader = evenstep.DataLoader(
            Fetching(),
            policy=POLICY,
            collate_fn=collate_fn,
            num_workers=workers,
            memory=evenstep.Memory(chunk_size=workers),
        )
        batches = list(loader)
        return {
            row[0].item(): draws
            for batch in batches
            for row, draws in zip(batch["input_ids"], batch["drawn"].tolist())
        }

    assert drawn(1) == drawn(3)
    torch.manual_seed(1)
    state = torch.get_rng_state()
    evenstep.DataLoader(Fetching(), policy=POLICY, collate_fn=Collate())
    assert torch.equal(torch.get_rng_state(), state)


def test_resume_in_mid_epoch_gives_the_batches_that_would_have_come():
    options: dict[str, Any] = {"policy": POLICY, "collate_fn": Collate(), "shuffle": True}
    assert_exact_resume(lambda: evenstep.DataLoader(Rows(), **options), every=4)


# Samples that were padded to one length before


HOLED = {"input_ids": [5, 6, 7, 8, 0], "attention_mask": [1, 0, 1, 1, 0]}


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
    texts = [{"source": [3] * (1 + i % 5), "target": list(range(2, 3 + i % 7))} for i in range(N)]

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
