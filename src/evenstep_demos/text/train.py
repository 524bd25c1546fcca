"""One epoch of data-parallel training on one rank, timed step by step, and the held-out loss.

*Wait* is the time that the rank spends in its loader. *Compute* is the forward and backward pass up
to the moment when its last gradient is ready; the rest of the backward call is waiting for other
ranks and the exchange. Gradients are exchanged in every step, as sharded training does, and added
up over the steps of an update.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from evenstep.plan.groups.token_budget_groups import token_budget_groups
from evenstep_demos.text.batches import Batches
from evenstep_demos.text.clock import GradientClock
from evenstep_demos.text.task import Task

_LEARNING_RATE, _WARM_UP = 3e-3, 0.1
_GRADIENT_NORM = 1.0


@dataclass(kw_only=True)
class StepRecords:
    """One rank's epoch, one entry per step. Times are seconds."""

    samples: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    padded_tokens: list[int] = field(default_factory=list)
    compute: list[float] = field(default_factory=list)
    compute_cpu: list[float] = field(default_factory=list)
    """Processor time within `compute`: less where other programs take the processor."""
    wait: list[float] = field(default_factory=list)
    """In the loader: the first includes its start, and one more is for the end of the epoch."""
    total: float = 0.0
    """The whole epoch, from the moment when the loader is asked for an iterator."""


def train_epoch(
    model: torch.nn.Module, batches: Batches, samples: int, on_step: Callable[[int, float], None]
) -> StepRecords:
    """Trains `model` on one epoch. All ranks must call it together.

    Args:
        model: returns its mean loss.
        batches: the epoch.
        samples: in the epoch, on all ranks. The learning rate follows the samples done, not the
            step, so it is a function of the data alone and ends at the same value in both runs.
        on_step: called after each step with the samples that all ranks have done, and this rank's
            loss.
    """
    parallel = DistributedDataParallel(model)
    clock = GradientClock(parallel)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0)
    records = StepRecords()
    done = 0
    dist.barrier()
    start = asked = time.perf_counter()
    stream = iter(batches)
    while True:
        item = next(stream, None)
        records.wait.append(time.perf_counter() - asked)
        if item is None:
            break
        batch = batches.rank_batch(item)
        begin, begin_cpu = time.perf_counter(), time.thread_time()
        loss = parallel(**batch.batch)
        (loss * batch.loss_scale).backward()
        records.compute.append(clock.ready - begin)
        records.compute_cpu.append(clock.ready_cpu - begin_cpu)
        done += batch.global_samples
        if batch.ends_update:
            torch.nn.utils.clip_grad_norm_(model.parameters(), _GRADIENT_NORM)
            for group in optimizer.param_groups:
                group["lr"] = _learning_rate(done / samples)
            optimizer.step()
            optimizer.zero_grad()
        records.samples.append(batch.samples)
        records.tokens.append(batch.tokens)
        records.padded_tokens.append(batch.padded_tokens)
        on_step(done, float(loss.detach()))
        asked = time.perf_counter()
    records.total = time.perf_counter() - start
    return records


def _learning_rate(progress: float) -> float:
    """Rises linearly, then falls linearly to near zero, where noise of batches no longer shows."""
    return _LEARNING_RATE * max(min(progress / _WARM_UP, (1.01 - progress) / (1 - _WARM_UP)), 0.0)


@torch.no_grad()
def held_out_loss(model: torch.nn.Module, task: Task, budget: int, device: str = "cpu") -> float:
    """Mean loss per predicted token over all held-out samples, equal on all ranks.

    Args:
        model: returns its mean loss.
        task: has the samples.
        budget: padded tokens evaluated at a time.
    """
    mine = np.arange(dist.get_rank(), len(task.held_out_lengths), dist.get_world_size())
    groups = token_budget_groups(task.held_out_lengths[mine], budget)
    sums = torch.zeros(2, dtype=torch.float64)
    model.eval()
    for index in range(len(groups)):
        collated = task.collate([task.held_out[int(i)] for i in mine[groups.group(index)]])
        batch = {name: value.to(device) for name, value in collated.items()}
        predicted = (batch["labels"][:, 1:] >= 0).sum()
        sums += torch.stack([model(**batch).double() * predicted, predicted]).cpu()
    model.train()
    dist.all_reduce(sums)
    return float(sums[0] / sums[1])
