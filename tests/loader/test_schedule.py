"""`follow_progress`: rates by the share of training that is done."""

from __future__ import annotations

import pytest
import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR

import evenstep

STEPS, WARMUP = 100, 10


def rate(step: float) -> float:
    return step / WARMUP if step < WARMUP else (STEPS - step) / (STEPS - WARMUP)


def rates(updates: int, warmup_steps: int) -> list[float]:
    """Of each update, and after the last."""
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    scheduler, done = LambdaLR(optimizer, rate), [0]
    evenstep.follow_progress(
        scheduler, lambda: done[0] / updates, steps=STEPS, warmup_steps=warmup_steps
    )
    found = []
    for _ in range(updates):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        done[0] += 1
        scheduler.step()
    return [*found, optimizer.param_groups[0]["lr"]]


@pytest.mark.parametrize("updates", [60, 100, 140])
def test_the_end_is_that_of_training_and_warmup_is_a_share_or_updates(updates: int) -> None:
    shares = [each / updates for each in range(updates + 1)]
    assert rates(updates, 0) == pytest.approx([rate(share * STEPS) for share in shares])
    counted = rates(updates, WARMUP)
    assert counted[: WARMUP + 1] == [rate(each) for each in range(WARMUP)] + [counted[WARMUP]]
    later = [rate(max(WARMUP, share * STEPS)) for share in shares[WARMUP:]]
    assert counted[WARMUP:] == pytest.approx(later)
    assert counted[-1] == 0.0


def test_another_scheduler_is_refused() -> None:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    with pytest.raises(evenstep.ConfigurationError, match=r"CosineAnnealingLR .* LambdaLR"):
        evenstep.follow_progress(CosineAnnealingLR(optimizer, 10), lambda: 0.0, steps=10)
