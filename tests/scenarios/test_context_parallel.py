"""Loaders of data-parallel x context-parallel ranks: shards that make up what one rank would have
had, equal steps, exact resume, and errors on all ranks where peers prepare different samples."""

from __future__ import annotations

import random
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import Rank, run, run_all

import evenstep
from documents import Documents
from evenstep.context_parallel.batch_shards import unshard
from evenstep.errors import ConfigurationError, PeerError
from evenstep.testing import assert_exact_resume

DOCUMENTS = Documents(90, prompts=True, seed=3)


def policy(sharding: str = "adaptive", context_parallel: int = 2) -> evenstep.WorkloadPacking:
    return evenstep.WorkloadPacking(
        220,
        micro_batches=2,
        max_tokens=300,
        context_parallel=context_parallel,
        sharding=sharding,
    )


def make(sharding: str = "adaptive", **options: Any) -> evenstep.DataLoader:
    options = {"policy": policy(sharding), "collate_fn": evenstep.PackCollator(), **options}
    return evenstep.DataLoader(
        options.pop("dataset", DOCUMENTS),
        shuffle=True,
        seed=4,
        memory=evenstep.Memory(buffer_size=18),
        **options,
    )


WORKERS: dict[str, dict[str, Any]] = {
    "per-sequence": {},
    "per-document": {},
    "adaptive": {"num_workers": 1, "multiprocessing_context": "fork"},
}


def epochs(rank: Rank) -> dict[str, list[tuple[list[Any], evenstep.StepInfo]]]:
    """By sharding."""
    made = {}
    for sharding, options in WORKERS.items():
        made[sharding] = list(make(sharding, **options).steps())
    return made


def test_the_shards_of_a_group_are_the_micro_batches_that_one_rank_would_have(
    tmp_path: Path,
) -> None:
    found = run(epochs, 4, folder=tmp_path, within=80)
    for sharding in WORKERS:
        check_shards([each[sharding] for each in found])


def check_shards(ranks: list[Any]) -> None:
    assert len({len(steps) for steps in ranks}) == 1
    seen: Counter[int] = Counter()
    for peers in (ranks[:2], ranks[2:]):
        for (first, info), (second, other) in zip(*peers):
            assert info.indices == other.indices
            assert (info.context_rank, other.context_rank) == (0, 1)
            assert info.to_dict() | {"context_rank": 1, "loss_scale": 0, "loss_scales": 0} == (
                other.to_dict() | {"loss_scale": 0, "loss_scales": 0}
            )
            seen.update(info.indices or ())
            whole = [evenstep.PackCollator()(documents) for documents in split(first, info)]
            for left, right, expected in zip(first, second, whole):
                assert "labels" not in left
                for name in ("input_ids", "position_ids", "document_ids"):
                    joined = unshard([left[name], right[name]], left["sharding"])
                    assert torch.equal(joined, expected[name]), name
                joined = unshard([left["shift_labels"], right["shift_labels"]], left["sharding"])
                assert torch.equal(joined[:, :-1], expected["labels"][:, 1:])
                assert abs(left["input_ids"].numel() - right["input_ids"].numel()) <= 1
    assert seen == Counter(range(90))


def split(batches: list[Any], info: evenstep.StepInfo) -> list[list[Any]]:
    """The samples of a step, by micro-batch; those of fillers are its shortest."""
    indices = list(info.indices or ())
    samples = [DOCUMENTS[index] for index in indices]
    groups = []
    for batch in batches:
        count = len(batch["cu_seqlens"]) - 1
        groups.append([samples.pop(0) for _ in range(min(count, len(samples)))])
        if not groups[-1]:
            named = batch["identity"].tolist()
            groups[-1] = [DOCUMENTS[index] for index in named]
    return groups


def resumes(rank: Rank) -> int:
    return assert_exact_resume(make, every=2)


def goes_on_on_two(rank: Rank) -> tuple[list[Any], list[Any]]:
    """Some steps on 2 x 2 ranks, and the rest of the epoch on 1 x 2."""
    loader = make()
    iterator = loader.steps()
    before = [next(iterator)[1].indices for _ in range(3)]
    states: list[Any] = [None] * 4
    dist.all_gather_object(states, loader.state_dict())
    loader.close()
    pair = dist.new_group([0, 1])
    if rank.rank > 1:
        return before, []
    rest = make(group=pair)
    rest.load_state_dict(evenstep.merge_states(states))
    after = [info.indices for _, info in rest.steps()]
    rest.close()
    return before, after


def test_an_epoch_is_gone_on_with_exactly_and_by_fewer_data_parallel_ranks(tmp_path: Path) -> None:
    counts, ranks = run_all(resumes, goes_on_on_two, world_size=4, folder=tmp_path, within=120)
    assert len(set(counts)) == 1
    assert counts[0] > 3
    assert ranks[0] == ranks[1]
    assert ranks[2] == ranks[3]
    made = [*ranks[0][0], *ranks[2][0], *ranks[0][1]]
    assert Counter(i for indices in made for i in indices) == Counter(range(90))


class Unsteady(Documents):
    """Documents of which one process sees others, or some cut short."""

    def __init__(self, odd: bool, lengths: bool) -> None:
        super().__init__(70, prompts=True, seed=3)
        self.odd, self.different = odd, lengths

    def __getitem__(self, index: int) -> dict[str, Any]:
        sample = super().__getitem__(index)
        if self.odd and index == 33:
            if self.different:
                return {name: value[:-1] for name, value in sample.items() if name != "identity"}
            sample["labels"][-1] = 1 + random.randrange(3)
            sample["input_ids"][0] = 63 - sample["input_ids"][0]
        return sample


def refused(rank: Rank) -> list[str]:
    """What is said where peers prepare other samples, or others' lengths, and of a wrong group."""
    said = []
    for lengths in (False, True):
        loader = make(dataset=Unsteady(rank.rank % 2 == 1, lengths))
        with pytest.raises(PeerError) as caught:
            list(loader)
        loader.close()
        said.append(str(caught.value))
    with pytest.raises(ConfigurationError) as wrong:
        iter(make(policy=policy(context_parallel=3)))
    return [*said, str(wrong.value)]


def test_peers_that_prepare_different_samples_fail_everywhere(tmp_path: Path) -> None:
    for *unsteady, group in run(refused, 4, folder=tmp_path, within=60):
        for said, lengths in zip(unsteady, (False, True)):
            assert "context-parallel ranks share every micro-batch" in said
            assert re.search(r"rank (1|3) of the group differ from those of rank (0|2)", said)
            assert ("lengths, arguments" in said) == lengths
        assert "context_parallel=3" in group
