"""Whole epochs on real ranks: every document once, equally many steps, nothing left behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from faults import own_threads
from ranks import Rank, run

import evenstep
from documents import Documents

EPOCHS = 2


def make_loader(dataset: Any, **options: Any) -> evenstep.DataLoader:
    return evenstep.DataLoader(
        dataset,
        **{
            "policy": evenstep.Even(max_tokens=1024),
            "memory": evenstep.Memory(buffer_size=48),
            "shuffle": True,
            "seed": 3,
            **options,
        },
    )


def check_step(batch: Any, step: evenstep.StepInfo) -> None:
    """What a StepInfo says of this rank is true of its batch."""
    rows, width = batch["input_ids"].shape
    if step.filler:
        assert (rows, step.samples, step.loss_scale, step.indices) == (1, 0, 0.0, ())
        return
    assert batch["identity"].tolist() == list(step.indices or ())
    assert step.samples == rows
    assert step.padded_tokens == rows * width <= 1024
    assert step.tokens == int(batch["attention_mask"].sum())


def train_with_breaks_and_evaluate(rank: Rank, train: int, evaluation: int, workers: Any) -> Any:
    """Two epochs, the second left early, an evaluation amid each."""
    loader = make_loader(Documents(train), **workers)
    evaluated = make_loader(Documents(evaluation, seed=1), shuffle=False, **workers)
    epochs = []
    for epoch in range(EPOCHS):
        loader.set_epoch(epoch)
        steps, seen, tested = 0, [], []
        for batch, step in loader.steps():
            assert (step.epoch, step.step) == (epoch, steps)
            check_step(batch, step)
            steps += 1
            seen += step.indices
            if steps == 3:  # with the training pass under way
                for batch, step in evaluated.steps():
                    check_step(batch, step)
                    tested += step.indices
            if epoch % 2 and steps == 5:
                break
        epochs.append((steps, seen, tested))
    loader.close()
    evaluated.close()
    return epochs, rank.children(), own_threads()


FORK = {"num_workers": 1, "multiprocessing_context": "fork"}
# Every start takes seconds, so there is one.
SPAWN = {"num_workers": 1, "multiprocessing_context": "spawn", "persistent_workers": True}


@pytest.mark.parametrize(
    ("world_size", "workers"),
    [
        (2, FORK),
        pytest.param(4, FORK, marks=pytest.mark.soak),
        pytest.param(2, SPAWN, marks=pytest.mark.soak),
        (2, {}),
    ],
    ids=["2-fork", "4-fork", "2-spawn", "2-threads"],
)
def test_every_document_comes_once_an_epoch_through_breaks_and_evaluations(
    tmp_path: Path, world_size: int, workers: Any
) -> None:
    train, evaluation = 203, 51
    results = run(
        train_with_breaks_and_evaluate,
        world_size,
        train,
        evaluation,
        workers,
        folder=tmp_path,
        within=90,
    )
    for epoch in range(EPOCHS):
        steps, seen, tested = zip(*(epochs[epoch] for epochs, _, _ in results))
        assert len(set(steps)) == 1
        for count, shards in ((evaluation, tested), *([] if epoch % 2 else [(train, seen)])):
            assert sorted(index for shard in shards for index in shard) == list(range(count))
        if epoch % 2:
            assert set(steps) == {5}
    for _, children, threads in results:
        assert (children, threads) == ([], [])
    # Epochs differ from each other.
    first, left = (results[0][0][epoch][1] for epoch in range(EPOCHS))
    assert first[: len(left)] != left


NOT_DEALT = {"policy": evenstep.TokenBudget(1024)}
EPOCH_SAMPLES = [
    ({}, {1: 100, 3: 100}),
    ({"shuffle": False, "sampler": range(100), "shard_sampler": True}, {1: 100, 3: 100}),
    ({"drop_last": True}, {1: 100, 3: 99}),
    (NOT_DEALT, {1: 100, 3: 102}),
    ({**NOT_DEALT, "drop_last": True}, {1: 100, 3: 99}),
]


def count_samples(rank: Rank | None) -> list[tuple[int | None, int]]:
    """By options: how many samples an epoch is said to have, and how many come."""
    counts = []
    for options, _ in EPOCH_SAMPLES:
        loader = make_loader(Documents(100), **options)
        said = loader.epoch_samples
        counts.append((said, sum(step.global_samples for _, step in loader.steps())))
        assert loader.epoch_samples == said
    return counts


def test_an_epoch_has_as_many_samples_as_it_says(tmp_path: Path) -> None:
    """Where they are dealt on demand, those of the dataset: none is repeated for equal shares."""
    jobs = {1: [count_samples(None)], 3: run(count_samples, 3, folder=tmp_path)}
    for world_size, ranks in jobs.items():
        for counts in ranks:
            for (said, came), (options, expected) in zip(counts, EPOCH_SAMPLES, strict=True):
                assert said == came == expected[world_size], (world_size, options)


def uneven_epoch(rank: Rank, shards: list[list[int]]) -> Any:
    loader = make_loader(
        Documents(500),
        shuffle=False,
        sampler=shards[rank.rank],
        num_workers=1,
        multiprocessing_context="fork",
    )
    steps = []
    for batch, step in loader.steps():
        check_step(batch, step)
        assert len(batch["input_ids"]) >= 1  # a filler is a real batch
        steps.append((step.filler, step.indices, step.totals))
    return steps


def test_unequal_shards_one_of_them_empty_end_together_and_lose_nothing(tmp_path: Path) -> None:
    """The audit of ODB, App. F."""
    ends = [47, 47 + 46, 47 + 46 + 45]
    shards = [list(range(begin, end)) for begin, end in zip([0, *ends], ends)] + [[]]
    results = run(uneven_epoch, 4, shards, folder=tmp_path, within=40)
    assert len({len(steps) for steps in results}) == 1
    for shard, steps in zip(shards, results):
        assert sorted(index for _, indices, _ in steps for index in indices) == shard
        # A rank fills when it has nothing left, and then to the end.
        fillers = [filler for filler, _, _ in steps]
        assert fillers == sorted(fillers)
    assert all(filler for filler, _, _ in results[3])
    for same in zip(*results):
        totals = [totals for _, _, totals in same]
        assert all(t == totals[0] for t in totals)
        assert totals[0].samples.tolist() == [len(indices) for _, indices, _ in same]
