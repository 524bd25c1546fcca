"""Whatever is wrong on one rank is an error on every rank, which names the culprit; and no hang."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import Job, Outcome, Rank

import evenstep
from documents import Documents

WITHIN = 10.0  # seconds for a whole job, its start included
Sample = dict[str, Any]


class Spoiled(Documents):
    """Documents of which one is not what it should be."""

    def __init__(self, index: int, spoil: Callable[[Sample], Sample]) -> None:
        super().__init__(200)
        self.index = index
        self.spoil = spoil

    def __getitem__(self, index: int) -> Sample:
        sample = super().__getitem__(index)
        return self.spoil(sample) if index == self.index else sample


def broken(sample: Sample) -> Sample:
    raise OSError("no such picture")


def emptied(sample: Sample) -> Sample:
    return {**sample, "input_ids": sample["input_ids"][:0], "labels": sample["labels"][:0]}


def enlarged(sample: Sample) -> Sample:
    tokens = torch.ones(5000, dtype=torch.int64)
    return {**sample, "input_ids": tokens, "labels": tokens.clone()}


def unmeasured(sample: Sample) -> Sample:
    return {**sample, "input_ids": None}


def length_of(sample: Sample) -> int:
    return len(sample["input_ids"])


class FailingCollate:
    """Pads, and fails at one document."""

    def __init__(self, identity: int) -> None:
        self.identity = identity

    def __call__(self, samples: list[Sample]) -> Any:
        if any(sample["identity"] == self.identity for sample in samples):
            raise ValueError("ragged")
        return evenstep.PadCollator()(samples)


def forgets_labels(samples: list[Sample]) -> Any:
    batch = evenstep.PadCollator()(samples)
    batch["labels"][:, 3:] = -100
    return batch


def one_epoch(rank: Rank, options: list[dict[str, Any]]) -> Any:
    """Runs an epoch with this rank's options, and tells how many steps it made."""
    loader = evenstep.DataLoader(
        **{
            "dataset": Documents(200),
            "policy": evenstep.TokenBudget(max_tokens=1024),
            "buffer_size": 16,
            **options[rank.rank],
        }
    )
    steps = 0
    for _ in loader:
        steps += 1
        rank.say("steps", steps)
    return steps


def outcomes_of(function: Callable[..., Any], *args: Any, folder: Path) -> list[Outcome]:
    with Job(function, 2, *args, folder=folder) as job:
        return job.join(WITHIN)


WORKERS = [{}, {"num_workers": 2, "multiprocessing_context": "fork"}]
with_and_without_workers = pytest.mark.parametrize("workers", WORKERS, ids=["threads", "workers"])


@dataclass(frozen=True)
class Case:
    options: dict[str, Any]
    error: str
    says: tuple[str, ...]


# Without shuffling, odd indices are rank 1's.
ON_RANK_1 = {
    "dataset raises": Case(
        {"dataset": Spoiled(71, broken)}, "SampleError", ("OSError", "sample 71", "no such picture")
    ),
    "zero length": Case(
        {"dataset": Spoiled(71, emptied)}, "SampleError", ("sample 71", "length 0", "filter")
    ),
    "over-long": Case(
        {"dataset": Spoiled(71, enlarged)}, "SampleError", ("sample 71", "5,000", "max_tokens")
    ),
    "length_fn raises": Case(
        {"dataset": Spoiled(71, unmeasured), "length_fn": length_of},
        "SampleError",
        ("sample 71", "length_fn", "TypeError"),
    ),
    "collate_fn raises": Case(
        {"collate_fn": FailingCollate(71)}, "CollateError", ("ValueError", "71", "ragged", "rank 1")
    ),
    "collate_fn raises at the end": Case(
        {"collate_fn": FailingCollate(199)}, "CollateError", ("199", "ragged", "rank 1")
    ),
    "collate_fn changes labels": Case(
        {"collate_fn": forgets_labels}, "CollateError", ("supervised tokens", "rank 1")
    ),
}


@with_and_without_workers
@pytest.mark.parametrize("case", ON_RANK_1.values(), ids=ON_RANK_1.keys())
@pytest.mark.timeout(40)
def test_a_failure_on_one_rank_is_named_on_both(
    tmp_path: Path, case: Case, workers: dict[str, Any]
) -> None:
    options = [{**workers}, {**workers, **case.options}]
    # The other rank must see nothing wrong by itself.
    options[0].update(dataset=Documents(200), length_fn=case.options.get("length_fn"))
    peer, culprit = outcomes_of(one_epoch, options, folder=tmp_path)
    assert culprit.error == case.error, culprit.traceback
    assert peer.error == "PeerError", peer.traceback
    assert peer.message.startswith(f"rank 1 failed: {case.error}: ")
    for word in case.says:
        assert word in culprit.message
        assert word in peer.message
    # The other rank has made every step that the culprit made, which ended for both where planning
    # failed, and at the culprit's own step where collating did.
    if culprit.error == "SampleError":
        assert peer.said == culprit.said
    else:
        assert peer.said["steps"] >= culprit.said.get("steps", 0)
    # It says so itself, and not in a worker's traceback.
    assert "Traceback" not in culprit.message


@pytest.mark.timeout(40)
def test_a_failure_at_the_very_first_sample_is_named_on_both(tmp_path: Path) -> None:
    options = [{"dataset": Spoiled(i, broken), **WORKERS[1]} for i in (200, 1)]
    peer, culprit = outcomes_of(one_epoch, options, folder=tmp_path)
    assert (peer.error, culprit.error) == ("PeerError", "SampleError")
    assert "sample 1" in peer.message


DIFFERENCES = {
    "policy": {"policy": evenstep.FixedBatch(4)},
    "policy's options": {"policy": evenstep.TokenBudget(max_tokens=1025)},
    "seed": {"seed": 1},
    "dataset size": {"dataset": Documents(202)},
    "buffer_size": {"buffer_size": 17},
    "exhausted": {"exhausted": "stop"},
    "loss_scaling": {"loss_scaling": "sample"},
    "shuffle": {"shuffle": True},
    "drop_last": {"drop_last": True},
}


@pytest.mark.parametrize(("name", "options"), DIFFERENCES.items(), ids=DIFFERENCES.keys())
@pytest.mark.timeout(40)
def test_ranks_that_were_built_differently_all_say_in_what(
    tmp_path: Path, name: str, options: dict[str, Any]
) -> None:
    workers = WORKERS[1] if name == "seed" else WORKERS[0]
    for outcome in outcomes_of(one_epoch, [workers, {**workers, **options}], folder=tmp_path):
        assert outcome.error == "MismatchError", outcome.traceback
        assert outcome.message.startswith(f"ranks differ in {name.partition(chr(39))[0]}: rank 0")
        assert "rank 1 has" in outcome.message


def different_epochs(rank: Rank) -> None:
    loader = evenstep.DataLoader(Documents(50), batch_size=4)
    loader.set_epoch(rank.rank)
    for _ in loader:
        pass


def different_order(rank: Rank) -> None:
    sizes = [50, 60] if rank.rank else [60, 50]
    for loader in [evenstep.DataLoader(Documents(size), batch_size=4) for size in sizes]:
        for _ in loader:
            pass


@pytest.mark.parametrize("function", [different_epochs, different_order])
@pytest.mark.timeout(40)
def test_ranks_that_use_their_loaders_differently_say_so(
    tmp_path: Path, function: Callable[..., Any]
) -> None:
    for outcome in outcomes_of(function, folder=tmp_path):
        assert outcome.error == "MismatchError", outcome.traceback


@pytest.mark.timeout(40)
def test_workers_and_chunks_may_differ_between_ranks(tmp_path: Path) -> None:
    options = [{**WORKERS[1], "chunk_size": 3, "prefetch": 2}, {"prefetch": 7}]
    outcomes = outcomes_of(one_epoch, options, folder=tmp_path)
    assert [outcome.error for outcome in outcomes] == ["", ""]
    assert outcomes[0].value == outcomes[1].value > 2


def fails_and_goes_on(rank: Rank) -> Any:
    """An error ends the pass, not the loader: the next pass may leave the sample out."""
    dataset = Spoiled(71, broken) if rank.rank else Documents(200)
    loader = evenstep.DataLoader(dataset, batch_size=4, **WORKERS[1])
    try:
        for _ in loader:
            pass
    except (evenstep.SampleError, evenstep.PeerError) as error:
        caught = type(error).__name__
    dist.barrier()
    dataset.index = -1
    return caught, sum(len(step.indices) for _, step in loader.steps())


@pytest.mark.timeout(40)
def test_a_pass_after_a_failed_one_is_whole(tmp_path: Path) -> None:
    outcomes = outcomes_of(fails_and_goes_on, folder=tmp_path)
    assert [o.value for o in outcomes] == [("PeerError", 100), ("SampleError", 100)]


def stops_with_the_shortest(rank: Rank, workers: dict[str, Any]) -> Any:
    loader = evenstep.DataLoader(
        Documents(1000),
        sampler=range(20) if rank.rank else range(1000),
        batch_size=2,
        buffer_size=8,
        exhausted="stop",
        **workers,
    )
    with pytest.warns(UserWarning, match="not trained on") if not rank.rank else nullcontext():
        return [step.indices for _, step in loader.steps()]


@with_and_without_workers
@pytest.mark.timeout(40)
def test_stop_ends_the_epoch_for_all_however_much_the_others_still_have(
    tmp_path: Path, workers: dict[str, Any]
) -> None:
    for outcome in outcomes_of(stops_with_the_shortest, workers, folder=tmp_path):
        assert not outcome.error, outcome.traceback
        assert outcome.value == [(i, i + 1) for i in range(0, 20, 2)]
