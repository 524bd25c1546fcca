"""Both runs of a demo on one rank: data-parallel training, timed step by step.

*Wait* is the time that a rank spends in its loader. *Compute* is the forward and backward pass up
to the moment when its last gradient is ready; the rest of the backward call is the exchange of
gradients and waiting for other ranks.
"""

# No `from __future__ import annotations` here: DDP reads the types in its hook's annotations.

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from evenstep.cli.output import note
from evenstep.plan.groups import token_budget_groups
from evenstep_demos.text.batches import RankBatch, even_batches, fixed_batches
from evenstep_demos.text.budget import Choice
from evenstep_demos.text.prepared_text import Task

RUNS = ("fixed", "evenstep")
"""Names of the two runs, in the order of the first repeat; the next repeat reverses it."""

REPEATS = 3
"""How often both runs are made, each time with initial weights and an order of their own."""

_LEARNING_RATE, _WARM_UP = 3e-3, 0.1
_GRADIENT_NORM = 1.0
_SECONDS_BETWEEN_LINES = 5.0


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
    """The whole epoch."""


@dataclass(frozen=True, kw_only=True)
class BothTrained:
    """Both runs, as rank 0 returns them."""

    initial_loss: float
    """Held-out loss before training, of the first repeat."""
    records: Mapping[str, list[list[StepRecords]]]
    """Run -> [repeats][ranks]"""
    held_out_losses: Mapping[str, list[float]]
    """Run -> [repeats]"""


def train_both(seed: int, choice: Choice, task: Task) -> BothTrained:
    """Both runs on one rank, inside an initialised process group. All ranks return the same.

    Args:
        seed, choice, task: equal on all ranks.
    """
    # One thread a rank, as every rank competes for the same cores. Denormal numbers, of which the
    # softmax of a trained model makes many, would make the later run slower than the earlier.
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)

    model = task.model(seed)
    initial_loss = held_out_loss(model, task, choice.max_tokens)
    # Warms up the allocator and the kernels for the first run.
    model(**task.collate([task.training[int(task.lengths.argmax())]])).backward()
    records: dict[str, list[list[StepRecords]]] = {run: [] for run in RUNS}
    losses: dict[str, list[float]] = {run: [] for run in RUNS}
    for repeat in range(REPEATS):
        for run in RUNS if repeat % 2 == 0 else RUNS[::-1]:
            model, record = task.model(seed + repeat), StepRecords()
            batches = (
                fixed_batches(task, choice.batch_size, seed + repeat, record.wait)
                if run == "fixed"
                else even_batches(task, choice.max_tokens, seed + repeat, record.wait)
            )
            _train_epoch(model, batches, record, f"{run} {repeat + 1}", len(task.lengths))
            gathered: list[Any] = [None] * dist.get_world_size()
            dist.all_gather_object(gathered, record)
            records[run].append(gathered)
            losses[run].append(held_out_loss(model, task, choice.max_tokens))
    return BothTrained(initial_loss=initial_loss, records=records, held_out_losses=losses)


class GradientClock:
    """Notes when a rank's own backward pass is done, before the exchange of gradients ends.

    DDP calls its communication hook with each bucket of gradients as soon as this rank has computed
    them; the last bucket ends the pass. The hook then does what DDP does without one.
    """

    def __init__(self, model: DistributedDataParallel) -> None:
        self.ready = 0.0
        """`time.perf_counter` when the last gradient of the latest backward pass was computed."""
        self.ready_cpu = 0.0
        """`time.thread_time` at that moment: backward runs in the thread that calls it."""
        model.register_comm_hook(self, _note_and_reduce)


def _note_and_reduce(
    clock: GradientClock,
    bucket: dist.GradBucket,  # type: ignore[name-defined]
) -> torch.futures.Future[torch.Tensor]:
    if bucket.is_last():
        clock.ready_cpu = time.thread_time()
        clock.ready = time.perf_counter()
    return allreduce_hook(dist.group.WORLD, bucket)  # type: ignore[arg-type]


def _train_epoch(
    model: torch.nn.Module,
    batches: Iterator[RankBatch],
    records: StepRecords,
    run: str,
    total: int,
) -> None:
    """Trains `model` on one epoch. All ranks must call it together.

    The learning rate follows the samples done, not the step, so it is a function of the data alone
    and ends at the same value in both runs. The first rank says every few seconds how far it is.

    Args:
        run: its name.
        total: samples of the epoch.
    """
    parallel = DistributedDataParallel(model)
    clock = GradientClock(parallel)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0)
    done, told = 0, 0.0
    dist.barrier()
    start = time.perf_counter()
    for number, batch in enumerate(batches):
        begin, begin_cpu = time.perf_counter(), time.thread_time()
        loss = parallel(**batch.batch)
        (loss * batch.loss_scale).backward()
        records.compute.append(clock.ready - begin)
        records.compute_cpu.append(clock.ready_cpu - begin_cpu)
        done += batch.global_samples
        if batch.ends_update:
            torch.nn.utils.clip_grad_norm_(model.parameters(), _GRADIENT_NORM)
            for group in optimizer.param_groups:
                group["lr"] = _learning_rate(done / total)
            optimizer.step()
            optimizer.zero_grad()
        records.samples.append(batch.samples)
        records.tokens.append(batch.tokens)
        records.padded_tokens.append(batch.padded_tokens)
        late = done >= total or time.monotonic() >= told + _SECONDS_BETWEEN_LINES
        if late and dist.get_rank() == 0:
            told = time.monotonic()
            note(f"{run:>10}: {done / total:4.0%}, step {number + 1}, loss {float(loss):.2f}")
    records.total = time.perf_counter() - start


def _learning_rate(progress: float) -> float:
    """Rises linearly, then falls linearly to near zero, where noise of batches no longer shows."""
    return _LEARNING_RATE * max(min(progress / _WARM_UP, (1.01 - progress) / (1 - _WARM_UP)), 0.0)


@torch.no_grad()
def held_out_loss(model: torch.nn.Module, task: Task, budget: int) -> float:
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
        batch = task.collate([task.held_out[int(i)] for i in mine[groups.group(index)]])
        predicted = (batch["labels"][:, 1:] >= 0).sum()
        sums += torch.stack([model(**batch).double() * predicted, predicted])
    model.train()
    dist.all_reduce(sums)
    return float(sums[0] / sums[1])
