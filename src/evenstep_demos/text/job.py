"""What one rank does: measures its speed, agrees on the samples, then makes the runs in turn."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from evenstep.plan.groups.token_budget_groups import token_budget_groups
from evenstep_demos.text.batches import Batches, EvenBatches, FixedBatches
from evenstep_demos.text.budget import choose
from evenstep_demos.text.messages import Chosen, Message, RunProgress, TextRunFinished
from evenstep_demos.text.options import TrainingOptions
from evenstep_demos.text.task import Task
from evenstep_demos.text.train import held_out_loss, train_epoch

RUNS = ("fixed", "evenstep")
"""Names of the two runs, in the order of the first repeat; the next one turns it round."""
_TIMED = 4  # groups


def job(send: Callable[[Message], None], options: TrainingOptions, task: Task) -> None:
    """The whole demo on one rank, inside an initialised process group.

    Args:
        send: takes messages of rank 0 to the parent process.
        options, task: equal on all ranks.
    """
    # One thread a rank, as every rank competes for the same cores. Denormal numbers, which the
    # softmax of a trained model makes many of, would make the later run slower than the earlier.
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    report = send if dist.get_rank() == 0 else _ignore

    # Also warms up the allocator and the kernels for the first run.
    speed = _seconds_per_token(task, options)
    choice = choose(task.lengths, options, speed)
    initial = held_out_loss(task.model(options.seed), task, options.max_tokens)
    report(Chosen(choice=choice, seconds_per_token=speed, initial_loss=initial))
    task = task.first(choice.samples)
    for repeat in range(options.repeats):
        for run in RUNS if repeat % 2 == 0 else RUNS[::-1]:
            seed = options.seed + repeat
            batches: Batches = (
                FixedBatches(task, choice.batch_size, options, seed)
                if run == "fixed"
                else EvenBatches(task, choice.max_tokens, options, seed)
            )
            model = task.model(seed)
            on_step = _step_reporter(report, f"{run} {repeat + 1}", choice.samples)
            records = train_epoch(model, batches, choice.samples, on_step)
            gathered: list[Any] = [None] * dist.get_world_size()
            dist.all_gather_object(gathered, records)
            loss = held_out_loss(model, task, options.max_tokens)
            report(TextRunFinished(run=run, repeat=repeat, records=gathered, held_out_loss=loss))


def _ignore(message: Message) -> None:
    pass


def _step_reporter(
    report: Callable[[Message], None], run: str, total: int
) -> Callable[[int, float], None]:
    steps = 0

    def on_step(done: int, loss: float) -> None:
        nonlocal steps
        steps += 1
        report(RunProgress(run=run, done=done, total=total, step=steps, loss=loss))

    return on_step


def _seconds_per_token(task: Task, options: TrainingOptions) -> float:
    """Time of a padded token, forward and backward, while all ranks compute; the slowest rank's."""
    groups = token_budget_groups(task.lengths, options.max_tokens)
    chosen = np.linspace(0, len(groups) - 1, _TIMED).astype(int)
    model = task.model(options.seed)
    rates = []
    for index in chosen.tolist():
        batch = task.collate([task.training[int(i)] for i in groups.group(index)])
        dist.barrier()
        begin = time.perf_counter()
        model(**batch).backward()
        rates.append((time.perf_counter() - begin) / batch["input_ids"].numel())
    slowest = torch.tensor(np.mean(rates[1:]), dtype=torch.float64)  # the first is for warming up
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    return float(slowest)
