"""What a loader promises holds under every policy, on real ranks."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import torch.distributed as dist
from ranks import Rank, run

import evenstep
from documents import Documents
from evenstep.plan import Policy
from evenstep.testing import assert_exact_resume

DOCUMENTS = Documents(90, prompts=True)
POLICIES = {
    "even": evenstep.Even(300),
    "even, packed": evenstep.Even(300, packed=True),
    "token budget": evenstep.TokenBudget(300),
    "fixed batch": evenstep.FixedBatch(4),
    "pool sort": evenstep.PoolSort(4),
    "sequence packing": evenstep.SequencePacking(300),
    "workload packing": evenstep.WorkloadPacking(220, micro_batches=2, max_tokens=300),
}


def make(policy: Policy, **options: Any) -> evenstep.DataLoader:
    return evenstep.DataLoader(
        DOCUMENTS,
        policy=policy,
        collate_fn=evenstep.PackCollator() if policy.packed else evenstep.PadCollator(),
        shuffle=True,
        seed=4,
        memory=evenstep.Memory(buffer_size=18),
        **options,
    )


def seen(loader: evenstep.DataLoader, steps: int | None = None) -> list[tuple[Any, ...]]:
    iterator = loader.steps()
    count = range(steps) if steps is not None else iter(int, 1)
    return [step.indices for _, (_, step) in zip(count, iterator)]


def go_through(rank: Rank) -> dict[str, Any]:
    """Whole epochs, and exact resumes, under every policy."""
    made: dict[str, Any] = {}
    for name, policy in POLICIES.items():
        loader = make(policy)
        made[name] = seen(loader), assert_exact_resume(lambda p=policy: make(p), every=6)
    return made


def test_two_ranks_see_all_samples_in_equal_steps_and_resume_exactly(tmp_path: Path) -> None:
    ranks = run(go_through, 2, folder=tmp_path, within=120)
    for name in POLICIES:
        (first, resumes), (second, others) = (made[name] for made in ranks)
        assert resumes == others > 1, name
        assert len(first) == len(second), name
        counts = Counter(i for indices in first + second for i in indices)
        assert counts == Counter(range(90)), name


def go_on_alone(rank: Rank) -> dict[str, Any]:
    """Some steps on all ranks, and the rest of the epoch on one."""
    made: dict[str, Any] = {}
    for name, policy in POLICIES.items():
        loader = make(policy)
        before = seen(loader, 4)
        states: list[Any] = [None] * rank.world_size
        dist.all_gather_object(states, loader.state_dict())
        loader.close()
        rest = []
        if rank.rank == 0:
            alone = make(policy, group="local")
            alone.load_state_dict(evenstep.merge_states(states))
            rest = seen(alone)
            alone.close()
        made[name] = before + rest
    return made


def test_one_rank_goes_on_for_three_and_sees_what_they_have_not(tmp_path: Path) -> None:
    ranks = run(go_on_alone, 3, folder=tmp_path, within=80)
    for name in POLICIES:
        counts = Counter(i for made in ranks for indices in made[name] for i in indices)
        assert counts == Counter(range(90)), name
