"""Dynamic context parallelism on real Gloo ranks: under any plan a model trains as it does in one
process, and ranks with different plans all raise before they train."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from gqa_model import VOCABULARY, GqaModel, mean_loss
from hypothesis import given, settings
from hypothesis import strategies as st
from ranks import Job, Rank, run

from evenstep.context_parallel import DynamicGroups, attention
from evenstep.errors import ConfigurationError, MismatchError, PeerError
from evenstep.plan.dynamic_context import (
    ContextPlan,
    DynamicContext,
    plan_dynamic_context,
)

TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-9}


@dataclass
class Document:
    """Tokens, positions and the labels of the next tokens of one."""

    number: int
    length: int

    def __post_init__(self) -> None:
        made = torch.Generator().manual_seed(self.number)
        self.tokens = torch.randint(VOCABULARY, (self.length,), generator=made)
        labels = self.tokens.roll(-1)
        labels[-1] = -100
        self.labels = labels.masked_fill(torch.rand(self.length, generator=made) < 0.3, -100)
        self.positions = torch.arange(self.length)


def rows_of(lengths: list[int]) -> list[Document]:
    return [Document(number, length) for number, length in enumerate(lengths)]


def causal(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q, k) / q.shape[-1] ** 0.5
    seen = torch.ones(len(q), len(q), dtype=torch.bool).tril()
    return torch.einsum("hqk,khd->qhd", scores.masked_fill(~seen, -torch.inf).softmax(-1), v)


def gradients(model: GqaModel) -> list[torch.Tensor]:
    return [p.grad if p.grad is not None else torch.zeros_like(p) for p in model.parameters()]


def alone(lengths: list[int], dtype: torch.dtype) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Logits of every document by itself, and gradients of the step."""
    model, logits = GqaModel().to(dtype), []
    rows = rows_of(lengths)
    supervised = max(sum(int((row.labels != -100).sum()) for row in rows), 1)
    for row in rows:
        out = model(model.embed(row.tokens), row.positions, causal)
        mean_loss(out, row.labels, supervised).backward()
        logits.append(out.detach())
    return logits, gradients(model)


def on_rank(
    groups: DynamicGroups, lengths: list[int], plan: ContextPlan, dtype: torch.dtype
) -> tuple[list[tuple[int, int, torch.Tensor]], list[torch.Tensor]]:
    """(document, position, logits) of each token of this rank, and its part of the gradients."""
    model, rows, found = GqaModel().to(dtype), rows_of(lengths), []
    supervised = max(sum(int((row.labels != -100).sum()) for row in rows), 1)
    groups.start(plan, lengths)
    for micro_batch in range(plan.micro_batches):
        prepared = groups.prepare(micro_batch)
        documents = groups.documents(micro_batch).tolist()
        own = prepared.sharding.indices(prepared.rank)
        names = [(d, at) for d in documents for at in range(lengths[d])]
        nothing = torch.empty(0, dtype=torch.int64)
        tokens, positions, labels = (
            torch.cat([nothing, *(getattr(rows[d], name) for d in documents)])[own]
            for name in ("tokens", "positions", "labels")
        )
        attend = partial(attention, prepared=prepared)
        out = model(model.embed(tokens), positions, attend)
        mean_loss(out, labels, supervised).backward()
        found += [(*names[at], logits) for at, logits in zip(own.tolist(), out.detach())]
    return found, gradients(model)


def check_shards(lengths: list[int], dtype: torch.dtype, shards: list[Any]) -> None:
    """Tokens and gradients of all ranks together are those of one process."""
    logits, expected = alone(lengths, dtype)
    tokens = [token for found, _ in shards for token in found]
    names = [(document, at) for document, at, _ in tokens]
    assert sorted(names) == [(d, at) for d, n in enumerate(lengths) for at in range(n)]
    if tokens:
        torch.testing.assert_close(
            torch.stack([found for _, _, found in tokens]),
            torch.stack([logits[document][at] for document, at in names]),
            rtol=TOLERANCE[dtype],
            atol=TOLERANCE[dtype],
        )
    for parts, gradient in zip(zip(*(parts for _, parts in shards)), expected):
        torch.testing.assert_close(
            torch.stack(parts).sum(0), gradient, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype]
        )


@st.composite
def drawn_cases(draw: st.DrawFn, ranks: int) -> tuple[list[int], ContextPlan, torch.dtype]:
    """Any documents in any groups of any sizes."""
    lengths = draw(st.lists(st.integers(1, 150), min_size=1, max_size=10))
    cuts = [
        [0, *sorted(draw(st.sets(st.integers(1, ranks - 1)))), ranks]
        for _ in range(draw(st.integers(1, 3)))
    ]
    size = np.concatenate([np.diff(each) for each in cuts])
    group = np.array([draw(st.integers(0, len(size) - 1)) for _ in lengths])
    order = np.array(draw(st.permutations(range(len(lengths)))))
    plan = ContextPlan(
        ranks=ranks,
        micro_batches=len(cuts),
        micro_batch=np.arange(len(cuts)).repeat([len(each) - 1 for each in cuts]),
        first=np.concatenate([each[:-1] for each in cuts]),
        size=size,
        documents=np.lexsort((order, group)),
        offsets=np.append(0, np.bincount(group, minlength=len(size)).cumsum()),
    )
    return lengths, plan, draw(st.sampled_from(list(TOLERANCE)))


def explore(rank: Rank, examples: int) -> int:
    """Rank 0 draws cases, and shrinks what fails; all ranks train on each."""
    groups, tried = DynamicGroups(device="cpu"), 0
    boxed: list[Any] = [None]
    if rank.rank:
        while True:
            dist.broadcast_object_list(boxed)
            if boxed[0] is None:
                return 0
            dist.gather_object(on_rank(groups, *boxed[0]))

    @settings(max_examples=examples, deadline=None, database=None, derandomize=True)
    @given(drawn_cases(rank.world_size))
    def holds(case: tuple[list[int], ContextPlan, torch.dtype]) -> None:
        nonlocal tried
        tried += 1
        dist.broadcast_object_list([case])
        shards: list[Any] = [None] * rank.world_size
        dist.gather_object(on_rank(groups, *case), shards)
        check_shards(case[0], case[2], shards)

    try:
        holds()
    finally:
        dist.broadcast_object_list(boxed)
    return tried


@pytest.mark.parametrize("examples", [10, pytest.param(400, marks=pytest.mark.soak)])
@pytest.mark.timeout(900)
def test_under_any_plan_a_model_trains_as_in_one_process(tmp_path: Path, examples: int) -> None:
    within = 90 if examples < 100 else 800
    assert run(explore, 4, examples, folder=tmp_path, within=within)[0] >= examples


LENGTHS = [60, 9, 30, 4, 2]
PLAN = plan_dynamic_context(LENGTHS, DynamicContext(ranks=4, tokens_per_rank=40))


def start_another(rank: Rank, how: str) -> None:
    plan, lengths = PLAN, list(LENGTHS)
    if rank.rank == 2:
        if how == "plan":
            plan = replace(plan, documents=plan.documents[::-1].copy())
        elif how == "lengths":
            lengths[0] += 1
        else:
            plan = replace(plan, ranks=3)
    DynamicGroups(device="cpu").start(plan, lengths)


@pytest.mark.parametrize("how", ["plan", "lengths", "ranks"])
def test_a_rank_with_another_plan_is_an_error_on_all_before_any_trains(
    tmp_path: Path, how: str
) -> None:
    with Job(start_another, 4, how, folder=tmp_path) as job:
        outcomes = job.join(within=30)
    errors = [outcome.error for outcome in outcomes]
    if how == "ranks":
        assert errors == [
            *[PeerError.__name__] * 2,
            ConfigurationError.__name__,
            PeerError.__name__,
        ]
        assert "ranks [2] could not start" in outcomes[0].message
        assert "the plan is for 3 ranks" in outcomes[2].message
        return
    assert errors == [MismatchError.__name__] * 4
    assert "rank 2 has another plan than ranks [0, 1, 3]" in outcomes[2].message
    assert "rank 0 has another plan than ranks [2]" in outcomes[0].message


def test_a_single_process_needs_no_process_group() -> None:
    lengths = [5, 3]
    plan = plan_dynamic_context(lengths, DynamicContext(ranks=1, tokens_per_rank=10))
    groups = DynamicGroups(device="cpu")
    with pytest.raises(ConfigurationError, match="no step was started"):
        groups.prepare(0)
    found, parts = on_rank(groups, lengths, plan, torch.float64)
    assert len(found) == 8
    for mine, expected in zip(parts, alone(lengths, torch.float64)[1]):
        torch.testing.assert_close(mine, expected, rtol=1e-9, atol=1e-9)
    with pytest.raises(ConfigurationError, match="micro_batch=1"):
        groups.prepare(1)
