"""What comes out of a loader in one process: content, order, coverage, information; how passes
end."""

from __future__ import annotations

import gc
import os
import signal
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


def make(dataset: Any = None, **options: Any) -> evenstep.DataLoader:
    options = {"policy": BUDGET, "buffer_size": 48, **options}
    return evenstep.DataLoader(
        Documents(COUNT) if dataset is None else dataset, **grouped(**options)
    )


def passes(epochs: int = 1, **options: Any) -> list[list[tuple[int, ...]]]:
    """Dataset indices of each batch of each epoch, in order."""
    loader = make(**{"shuffle": True, "seed": 3, **options})
    return [[step.indices for _, step in loader.steps()] for _ in range(epochs)]


def test_every_sample_comes_once_in_each_epoch_and_epochs_differ():
    epochs = passes(3)
    for batches in epochs:
        assert sorted(index for batch in batches for index in batch) == list(range(COUNT))
    assert epochs[0] != epochs[1] != epochs[2]


def test_a_batch_is_its_samples_padded_and_its_step_says_so():
    documents = Documents(COUNT, prompts=True)
    for number, batch in enumerate(make(documents, shuffle=True)):
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


def test_a_new_pass_ends_the_one_under_way_and_the_end_of_a_pass_is_final():
    loader = make()
    first, second = loader.steps(), loader.steps()
    assert len(list(second)) > 3
    assert next(second, None) is None
    with pytest.raises(LoaderDiedError, match="iterate the loader again"):
        next(first)


def test_an_interrupt_closes_the_pass():
    class Interrupting(Documents):
        interrupts = True

        def __getitem__(self, index: int) -> Any:
            if index == 40 and self.interrupts:  # before the first window is full
                self.interrupts = False
                time.sleep(0.2)
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(0.2)
            return super().__getitem__(index)

    loader = make(Interrupting(COUNT))
    steps = loader.steps()
    with pytest.raises(KeyboardInterrupt):
        list(steps)
    with pytest.raises(LoaderDiedError, match="was closed; iterate the loader again"):
        next(steps)
    assert sum(step.samples for _, step in loader.steps()) == COUNT


def test_a_loader_that_only_its_iterator_holds_lives_on():
    count = 0
    for _ in make():
        if count < 3:
            gc.collect()
        count += 1
    assert count == len(passes(1, shuffle=False)[0])


def test_nothing_runs_after_a_loader_is_closed():
    before = threading.active_count()
    loader = make()
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
