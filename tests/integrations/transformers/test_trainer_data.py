"""Data of other kinds: ranks with few samples, iterable datasets, no collate function, and trainers
that a launcher makes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from launched_rank import as_rank
from ranks import Rank, run
from tiny_trainer import (
    POLICY,
    MeanLlama,
    TellingLlama,
    check_updates,
    documents,
    gathered,
    make_trainer,
    together,
)
from torch.utils.data import (
    IterableDataset,
)
from transformers import Trainer

import evenstep
from evenstep.integrations import transformers as even

datasets = pytest.importorskip("datasets")
distributed = pytest.importorskip("datasets.distributed")
pytestmark = pytest.mark.integrations
N = len(documents())


class Stream(IterableDataset):
    """All samples on every rank, as Trainer's iterable datasets yield them."""

    def __iter__(self) -> Iterator[Any]:
        return iter(documents()[index] for index in range(N))


class Drawn(Stream):
    """In an order that each rank would draw in its own way."""

    def __init__(self, rank: int) -> None:
        self.generator = torch.Generator().manual_seed(rank)

    def __iter__(self) -> Iterator[Any]:
        order = torch.randperm(N, generator=self.generator).tolist()
        return iter(documents()[index] for index in order)


class ByEpoch(Drawn):
    def set_epoch(self, epoch: int) -> None:
        self.generator.manual_seed(100 + epoch)


class Dealing(Stream):
    def share_of_worker(self, worker: int, workers: int) -> Iterator[Any]:
        return iter(documents()[index] for index in range(worker, N, workers))


def fill(rank: Rank, folder: Any) -> None:
    """Rank 1 has a few samples: what it runs when it has none left bears no loss, in no way."""
    as_rank(rank)
    own = range(N - 6) if rank.rank == 0 else range(N - 6, N)
    for kind in (TellingLlama, MeanLlama):
        for accumulate in (1, 3):
            model = kind()
            trainer = even.install(
                make_trainer(folder, model=model, gradient_accumulation_steps=accumulate),
                policy=evenstep.TokenBudget(128),
                sampler=list(own),
            )
            trainer.train()
            check_updates(trainer, model)
            if rank.rank == 1 and accumulate == 1:
                assert [] in model.seen.samples[:-1]


def test_a_rank_that_has_nothing_left(tmp_path) -> None:
    run(fill, 2, tmp_path, folder=tmp_path, within=100)


def table() -> Any:
    """An iterable dataset of Hugging Face's."""
    rows = [documents()[index] for index in range(N)]
    fields = {name: [np.asarray(row[name]).tolist() for row in rows] for name in rows[0]}
    return datasets.Dataset.from_dict(fields).to_iterable_dataset(num_shards=4)


STREAMS: dict[str, tuple[Any, int]] = {  # (rank -> dataset, workers)
    "stream": (lambda rank: Stream(), 0),
    "drawn": (Drawn, 0),
    "by epoch": (ByEpoch, 0),
    "datasets": (lambda rank: table(), 2),
    "datasets, split": (lambda rank: distributed.split_dataset_by_node(table(), rank, 2), 0),
    "dealing": (lambda rank: Dealing(), 0),
}


def streamed(rank: Rank, folder: Any) -> dict[str, list[int]]:
    as_rank(rank)
    found = {}
    for kind, (dataset, workers) in STREAMS.items():
        options = {"max_steps": 8, "dataloader_num_workers": workers}
        trainer = make_trainer(folder, dataset=dataset(rank.rank), **options)
        faults = evenstep.Faults(replay="datasets" not in kind)
        even.install(trainer, policy=POLICY, faults=faults).train()
        assert trainer.state.global_step == 8
        found[kind] = [i for update in together(gathered(trainer.model.seen)) for i in update]
    return found


def test_iterable_datasets(tmp_path) -> None:
    for kind, seen in run(streamed, 2, tmp_path, folder=tmp_path, within=170)[0].items():
        assert sorted(seen[:N]) == list(range(N)), kind
        assert len(seen) > N
        if kind in ("drawn", "by epoch"):
            assert seen[N:] != seen[: len(seen) - N], "the second epoch has the first one's order"


class CustomTrainer(Trainer):
    """A launcher's own class."""

    def __init__(self, finetuning: str, **options: Any) -> None:
        super().__init__(**options)
        self.finetuning = finetuning


def test_a_trainer_that_a_launcher_makes(tmp_path) -> None:
    made = even.trainer_class(CustomTrainer, policy=POLICY)

    def launched(**options: Any) -> Any:
        return made("full", **options)

    trainer = make_trainer(tmp_path, cls=launched)
    assert isinstance(trainer, CustomTrainer)
    assert trainer.finetuning == "full"
    trainer.train()
    assert sorted(trainer.model.seen.flat()) == list(range(N))


def without_collator(**options: Any) -> Trainer:
    return Trainer(**{**options, "data_collator": None})


class CountingLlama(TellingLlama):
    """Counts real tokens."""

    tokens = 0

    def forward(self, input_ids=None, labels=None, identity=None, **others):  # type: ignore
        mask = others.get("attention_mask")
        self.tokens += input_ids.numel() if mask is None else int(mask.sum())
        return super().forward(input_ids=input_ids, labels=labels, **others)


@pytest.mark.parametrize("packed", [False, True])
def test_samples_are_padded_or_packed_without_a_collate_function(tmp_path, packed: bool) -> None:
    trainer = make_trainer(tmp_path, model=CountingLlama(), cls=without_collator)
    even.install(trainer, policy=POLICY, packed=packed).train()
    assert trainer.model.tokens == sum(len(documents()[i]["input_ids"]) for i in range(N))
