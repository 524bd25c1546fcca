"""Training with DistributedDataParallel on dynamic batches follows the gradient of all samples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from ranks import Rank, run
from tiny_model import TinyModel
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import evenstep
from documents import Documents


def gradient(module: nn.Module) -> torch.Tensor:
    gradients = [p.grad.flatten().clone() for p in module.parameters() if p.grad is not None]
    module.zero_grad(set_to_none=True)
    return torch.cat(gradients)


def relative_error(value: torch.Tensor, truth: torch.Tensor) -> float:
    return float((value - truth).norm() / truth.norm())


# One rank has fewer samples than the other one has steps, so that its last steps are fillers.
COUNT = 120
SHARDS = [list(range(5, COUNT)), list(range(5))]


DOCUMENTS = Documents(COUNT, longest=64, prompts=True)
POLICIES = {
    "packed": evenstep.Even(256, packed=True),
    "micro-batches": evenstep.WorkloadPacking(128, micro_batches=3),
}


def loader_of(rank: Rank, form: str, num_workers: int) -> evenstep.DataLoader:
    policy = POLICIES[form]
    return evenstep.DataLoader(
        DOCUMENTS,
        policy=policy,
        collate_fn=evenstep.PackCollator(),
        sampler=SHARDS[rank.rank],
        memory=evenstep.Memory(buffer_size=16),
        num_workers=num_workers,
        multiprocessing_context="fork" if num_workers else None,
    )


def truth_of(indices: list[int]) -> torch.Tensor:
    """Gradient of all samples as one padded batch in one process, made without a loader."""
    model = TinyModel()
    model(**evenstep.PadCollator()([DOCUMENTS[i] for i in indices])).loss.backward()
    return gradient(model)


def backward(model: Any, batch: Any, step: evenstep.StepInfo) -> None:
    if not step.loss_scales:
        (model(**batch).loss * step.loss_scale).backward()
        return
    *pairs, (last, last_scale) = zip(batch, step.loss_scales)
    with model.no_sync():
        for micro_batch, scale in pairs:
            (model(**micro_batch).loss * scale).backward()
    (model(**last).loss * last_scale).backward()


def train(rank: Rank) -> dict[str, list[Any]]:
    """By form: indices and gradient of each step."""
    steps: dict[str, list[Any]] = {}
    for form in POLICIES:
        model = DistributedDataParallel(TinyModel())
        steps[form] = []
        for batch in loader_of(rank, form, int(form == "packed")):
            step = evenstep.pop_step(batch)
            backward(model, batch, step)
            steps[form].append((step.indices, gradient(model)))
    return steps


def test_gradients_of_steps_are_those_of_one_process(tmp_path: Path) -> None:
    first, second = run(train, 2, folder=tmp_path, within=90)
    for form in POLICIES:
        assert len(first[form]) == len(second[form]) > 3
        assert any(not indices for indices, _ in second[form])
        for same in zip(first[form], second[form]):
            truth = truth_of([i for indices, _ in same for i in indices])
            for _, value in same:
                assert relative_error(value, truth) < 1e-5, form
