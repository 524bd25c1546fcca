"""Loaders with dynamic context parallelism, on real ranks: each document is read by one rank and
trained on once, whole, by its group; gradients are those of one large batch; epochs are gone on
with, on the same ranks exactly."""

from __future__ import annotations

import os
import signal
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from faults import FORK, all_training, train
from gqa_model import VOCABULARY, GqaModel
from ranks import Job, Rank, run
from test_dynamic_gradients import causal
from torch.nn.functional import cross_entropy

import evenstep
from documents import Documents
from evenstep.context_parallel import DynamicGroups, attention, unshard
from evenstep.plan.dynamic_context import Exchange
from evenstep.testing import assert_exact_resume

MOST = 120


class Read(Documents):
    """Counts what is read."""

    def __init__(self, longest: int = 300) -> None:
        super().__init__(96, longest=longest, prompts=True, seed=3)
        self.read: Counter[int] = Counter()

    def __getitem__(self, index: int) -> dict[str, Any]:
        self.read[index] += 1
        sample = super().__getitem__(index)
        few = sample["input_ids"] % VOCABULARY
        labels = few.where(sample["labels"] >= 0, sample["labels"])
        return sample | {"input_ids": few, "labels": labels}


def policy(ranks: int = 4) -> evenstep.WorkloadPacking:
    return evenstep.WorkloadPacking(
        96,
        micro_batches=2,
        max_tokens=MOST,
        context_parallel="dynamic",
        ranks=ranks,
        cost=evenstep.DocumentCost(linear=100),
        exchange=Exchange(within=0, between=0),
    )


def make(ranks: int = 4, **options: Any) -> evenstep.DataLoader:
    return evenstep.DataLoader(
        options.pop("dataset", None) or Read(),
        **{"policy": policy(ranks), "collate_fn": evenstep.PackCollator(), **options},
        shuffle=True,
        seed=4,
        memory=evenstep.Memory(buffer_size=24),
    )


def epoch(rank: Rank, workers: int) -> tuple[list[Any], Counter[int]]:
    dataset = Read()
    with_workers = {"num_workers": workers, "multiprocessing_context": "fork"} if workers else {}
    steps = list(make(rank.world_size, dataset=dataset, **with_workers).steps())
    return steps, dataset.read


@pytest.mark.parametrize(("ranks", "workers"), [(4, 0), (3, 1)])
def test_each_document_is_read_by_one_rank_and_trained_on_whole_by_its_group(
    tmp_path: Path, ranks: int, workers: int
) -> None:
    made = run(epoch, ranks, workers, folder=tmp_path, within=80)
    if not workers:
        reads = sum((read for _, read in made), Counter())
        assert reads == Counter(range(96))
    indices = Counter(i for steps, _ in made for _, info in steps for i in info.indices)
    assert indices == Counter(range(96))
    dataset, trained, sizes = Read(), Counter(), Counter()
    for step in zip(*(steps for steps, _ in made), strict=True):
        assert len({len(batches) for batches, _ in step}) == 1, "as many micro-batches on all ranks"
        for number, micro_batch in enumerate(zip(*(batches for batches, _ in step))):
            for rank, shard in enumerate(micro_batch):
                group = shard["context_ranks"]
                assert rank in group
                assert shard["input_ids"].numel() <= MOST
                filler = len(group) == 1 and step[rank][1].loss_scales[number] == 0
                if filler or rank != group.start:
                    continue
                sizes[len(group)] += 1
                shards = [micro_batch[other] for other in group]
                names = shard["identity"].tolist()
                trained.update(names)
                whole = evenstep.PackCollator()([dataset[name] for name in names])
                for name in ("input_ids", "position_ids"):
                    joined = unshard([each[name] for each in shards], shard["sharding"])
                    assert torch.equal(joined, whole[name]), name
                labels = unshard([each["shift_labels"] for each in shards], shard["sharding"])
                assert torch.equal(labels[:, :-1], whole["labels"][:, 1:])
    assert trained == Counter(range(96))
    assert set(sizes) >= {1, 2, 3}


def gradients(rank: Rank) -> list[tuple[list[torch.Tensor], list[torch.Tensor]]]:
    """By step the mean of all ranks' gradients, and the gradient of one large batch."""
    groups, dataset, found = DynamicGroups(device="cpu"), Read(), []
    for batches, info in make(rank.world_size).steps():
        model = GqaModel().double()
        for batch, scale in zip(batches, info.loss_scales):
            tokens, positions, labels = (
                batch[name][0] for name in ("input_ids", "position_ids", "shift_labels")
            )
            attend = partial(attention, prepared=groups.prepare_shard(batch))
            out = model(model.embed(tokens), positions, attend)
            loss = cross_entropy(out, labels, ignore_index=-100, reduction="sum")
            (scale * loss / max(int((labels != -100).sum()), 1)).backward()
        parts = [p.grad for p in model.parameters()]
        for part in parts:
            dist.all_reduce(part)
        names: list[Any] = [None] * rank.world_size
        dist.all_gather_object(names, info.indices)
        one = GqaModel().double()
        for name in (name for of_rank in names for name in of_rank):
            sample = dataset[name]
            out = one(one.embed(sample["input_ids"]), torch.arange(len(sample["labels"])), causal)
            loss = cross_entropy(out[:-1], sample["labels"][1:], ignore_index=-100, reduction="sum")
            (loss / info.global_supervised_tokens).backward()
        means = [part / rank.world_size for part in parts]
        found.append((means, [p.grad for p in one.parameters()]))
    return found


def test_gradients_are_those_of_one_large_batch(tmp_path: Path) -> None:
    (found, *_) = run(gradients, 4, folder=tmp_path, within=80)
    assert len(found) > 3
    for parts, expected in found:
        for mine, wanted in zip(parts, expected, strict=True):
            torch.testing.assert_close(mine, wanted, rtol=1e-8, atol=1e-9)


def resumes(rank: Rank) -> int:
    return assert_exact_resume(make, every=2)


def goes_on_on_two(rank: Rank) -> tuple[list[Any], list[Any]]:
    loader = make(dataset=Read(200))
    iterator = loader.steps()
    before = [next(iterator)[1].indices for _ in range(3)]
    states: list[Any] = [None] * 4
    dist.all_gather_object(states, loader.state_dict())
    loader.close()
    pair = dist.new_group([0, 1])
    if rank.rank > 1:
        return before, []
    rest = make(2, dataset=Read(200), group=pair)
    rest.load_state_dict(evenstep.merge_states(states))
    after = [info.indices for _, info in rest.steps()]
    rest.close()
    return before, after


def test_an_epoch_is_gone_on_with_exactly_and_by_fewer_ranks(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    counts = run(resumes, 4, folder=tmp_path / "a", within=100)
    assert len(set(counts)) == 1
    assert counts[0] > 3
    ranks = run(goes_on_on_two, 4, folder=tmp_path / "b", within=80)
    made = [indices for parts in ranks for part in parts for indices in part]
    assert Counter(i for indices in made for i in indices) == Counter(range(96))


class Odd(Read):
    def __getitem__(self, index: int) -> dict[str, Any]:
        return super().__getitem__(index) | {"path": Path("/x") if index == 33 else "x"}


def fails(rank: Rank, how: str) -> None:
    options = {"dataset": Odd()} if how == "sample" else {"policy": policy(3)}
    for _ in make(**options):
        pass


def test_a_sample_that_cannot_be_sent_is_named_and_all_ranks_fail(tmp_path: Path) -> None:
    with Job(fails, 4, "sample", folder=tmp_path) as job:
        outcomes = job.join(within=40)
    errors = Counter(outcome.error for outcome in outcomes)
    assert errors == {"SampleError": 1, "PeerError": 3}
    for outcome in outcomes:
        assert "pathlib" in outcome.message
        assert "cannot be sent to other ranks" in outcome.message


def test_a_policy_for_another_number_of_ranks_is_refused(tmp_path: Path) -> None:
    with Job(fails, 4, "ranks", folder=tmp_path) as job:
        outcomes = job.join(within=40)
    assert {outcome.error for outcome in outcomes} <= {"ConfigurationError", "PeerError"}
    assert any("the policy has ranks=3" in outcome.message for outcome in outcomes)


def test_a_killed_rank_is_named_on_all(tmp_path: Path) -> None:
    options = {**FORK, "policy": policy(), "collate_fn": evenstep.PackCollator()}
    with Job(train, 4, options, Documents(20_000), folder=tmp_path) as job:
        all_training(job, 4)
        pid = job.pid(1)
        os.kill(pid, signal.SIGKILL)
        outcomes = job.join(within=40)
    for rank in (0, 2, 3):
        assert outcomes[rank].error == "PeerError"
        assert str(pid) in outcomes[rank].message


def test_steps_hold_equal_tokens_and_every_rank_brings_some() -> None:
    plan = policy()
    offers = np.array([[100, 50, 40, 0], [400, 9, 9, 9], [60, 70, 80, 90], [5, 0, 0, 0]])
    shared = plan.share(offers)
    assert shared.lengths.sum() <= 4 * 2 * 96
    assert set(shared.reader.tolist()) == {0, 1, 2, 3}
    shared.plan.check(shared.lengths, MOST)
    assert shared.costs.max() / shared.costs.mean() < 1.1
