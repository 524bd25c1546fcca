"""A driver on Ray that holds all rollouts: to ranks as Ray's objects, and results back."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
import torch

from evenstep.rebalance import plan_rebalance

ray = pytest.importorskip("ray", reason="ray is not installed")
pytestmark = pytest.mark.usefixtures("ray_of_file")

RANKS, WIDTH = 3, 4


def losses_of(weight: torch.Tensor, sequence: torch.Tensor) -> torch.Tensor:
    """[tokens]"""
    return (sequence @ weight - 1).square()


def loss_of(weight: torch.Tensor, sequences: list[torch.Tensor], mean: str) -> torch.Tensor:
    losses = [losses_of(weight, each) for each in sequences]
    return (
        torch.cat(losses).mean() if mean == "token" else sum(x.mean() for x in losses) / len(losses)
    )


def train(micro_batches: list[list[Any]], scales: list[float], mean: str) -> tuple[Any, Any]:
    """A rank: its gradient, and the loss of each of its sequences."""
    weight = torch.arange(WIDTH, dtype=torch.float64).requires_grad_()
    for sequences, scale in zip(micro_batches, scales, strict=True):
        (loss_of(weight, list(map(torch.from_numpy, sequences)), mean) * scale).backward()
    results = [
        [float(losses_of(weight.detach(), torch.from_numpy(each)).mean()) for each in sequences]
        for sequences in micro_batches
    ]
    return weight.grad.numpy(), results


@pytest.mark.parametrize("mean", ["token", "sequence"])
def test_ranks_train_on_what_the_driver_gives_them(mean: str) -> None:
    rng = np.random.default_rng(3)
    rollouts = [rng.normal(size=(n, WIDTH)) for n in rng.integers(1, 60, 50)]
    lengths = np.array([len(each) for each in rollouts])
    plan = plan_rebalance(lengths, ranks=RANKS, max_tokens=100)
    scales = plan.loss_scales(lengths if mean == "token" else np.ones_like(lengths))
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import it
    remote = ray.remote(num_cpus=0)(train)
    running = []
    for rank in range(RANKS):
        own = [[rollouts[n] for n in members] for members in plan.of_rank(rank)]
        running.append(remote.remote(ray.put(own), scales[rank].tolist(), mean))
    gradients, results = zip(*ray.get(running), strict=True)

    weight = torch.arange(WIDTH, dtype=torch.float64).requires_grad_()
    every = list(map(torch.from_numpy, rollouts))
    loss_of(weight, every, mean).backward()
    np.testing.assert_allclose(np.mean(gradients, axis=0), weight.grad.numpy(), rtol=1e-12)
    alone = [float(losses_of(weight.detach(), each).mean()) for each in every]
    assert plan.restore(results) == pytest.approx(alone, rel=1e-12)
