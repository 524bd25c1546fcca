"""What comes out of a loader in one process: content, order, coverage, information."""

from __future__ import annotations

import gc
import threading
import time
from typing import Any

import pytest
import torch

import evenstep
from documents import Documents
from evenstep.errors import LoaderDiedError
from loader_options import grouped

COUNT = 203
BUDGET = evenstep.TokenBudget(512)


def passes(epochs: int = 1, **options) -> list[list[tuple[int, ...]]]:
    """Dataset indices of each batch of each epoch, in order."""
    options = {"policy": BUDGET, "shuffle": True, "seed": 3, "buffer_size": 48, **options}
    loader = evenstep.DataLoader(Documents(COUNT), **grouped(**options))
    return [[step.indices for _, step in loader.steps()] for _ in range(epochs)]


def test_every_sample_comes_once_in_each_epoch_and_epochs_differ():
    epochs = passes(3)
    for batches in epochs:
        assert sorted(index for batch in batches for index in batch) == list(range(COUNT))
    assert epochs[0] != epochs[1] != epochs[2]


def test_batches_and_their_order_do_not_depend_on_how_they_are_made():
    workers = {"num_workers": 1, "persistent_workers": True, "multiprocessing_context": "fork"}
    assert passes(2, **workers, chunk_size=7) == passes(2)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_batch_is_its_samples_padded_and_its_step_says_so(workers):
    documents = Documents(COUNT, prompts=True)
    loader = evenstep.DataLoader(
        documents,
        policy=BUDGET,
        shuffle=True,
        num_workers=workers,
        memory=evenstep.Memory(buffer_size=48),
    )
    for number, batch in enumerate(loader):
        step = evenstep.pop_step(batch)
        assert step.step == number
        assert step.loss_scale == 1.0
        assert batch["identity"].tolist() == list(step.indices)
        rows, width = batch["input_ids"].shape
        lengths = documents.lengths[list(step.indices)]
        assert (rows, width) == (step.samples, lengths.max())
        assert step.padded_tokens == rows * width <= 512
        assert step.tokens == lengths.sum() == batch["attention_mask"].sum()
        supervised = 0
        for row, index in enumerate(step.indices):
            sample = documents[index]
            length = len(sample["input_ids"])
            assert torch.equal(batch["input_ids"][row, :length], sample["input_ids"])
            assert torch.equal(batch["labels"][row, :length], sample["labels"])
            supervised += int((sample["labels"][1:] != -100).sum())
            # Labels that begin unmasked are a copy of the tokens, which models shift themselves;
            # of a masked prompt every label that is left counts.
        assert step.supervised_tokens == supervised


def test_a_new_pass_ends_the_one_under_way():
    loader = evenstep.DataLoader(
        Documents(COUNT), policy=BUDGET, memory=evenstep.Memory(buffer_size=48)
    )
    first = loader.steps()
    next(first)
    assert len(list(loader.steps())) > 3
    with pytest.raises(LoaderDiedError, match="iterate the loader again"):
        next(first)


def test_a_loader_that_only_its_iterator_holds_lives_on():
    count = 0
    for _ in evenstep.DataLoader(
        Documents(COUNT), policy=BUDGET, memory=evenstep.Memory(buffer_size=48)
    ):
        if count < 3:
            gc.collect()
        count += 1
    assert count == len(passes(1, shuffle=False)[0])


def test_nothing_runs_after_a_loader_is_closed():
    before = threading.active_count()
    loader = evenstep.DataLoader(
        Documents(COUNT), policy=BUDGET, memory=evenstep.Memory(buffer_size=48)
    )
    next(loader.steps())
    loader.close()
    assert threading.active_count() == before
    assert len(list(loader.steps())) > 3  # and it can be used again


def test_without_workers_samples_are_not_measured_while_a_batch_is_collated() -> None:
    """Both may use one tokenizer, in which every call sets the side of its padding."""
    users: list[str] = []

    def alone(name: str, made: Any) -> Any:
        users.append(name)
        time.sleep(0.001)
        assert users == [name]
        users.remove(name)
        return made

    loader = evenstep.DataLoader(
        [[n] * (1 + n % 9) for n in range(200)],
        policy=evenstep.Even(max_tokens=32),
        length_fn=lambda sample: alone("length_fn", len(sample)),
        collate_fn=lambda samples: alone("collate_fn", samples),
        accumulate=1,
    )
    assert sum(map(len, loader)) == 200
