"""One epoch of data-parallel training, timed; the cost of a group; and the held-out loss."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from benchmarks.lib.methods import METHODS, Batch, Setting
from evenstep_demos.text.prepared_text import Task
from evenstep_demos.text.train import GradientClock, held_out_loss

LEARNING_RATE = 3e-3
_WARM_UP = 0.1  # of the samples
_GRADIENT_NORM = 1.0


@dataclass(kw_only=True)
class Records:
    """One rank's epoch, one entry per step."""

    samples: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    padded: list[int] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)
    """Processor seconds of the training thread, up to the moment when its last gradient is
    computed."""
    seconds: float = 0.0
    """From asking for the first batch to the end of the last step."""
    loss: float = 0.0
    """Held out, after the epoch; equal on all ranks."""


def epoch(task: Task, name: str, setting: Setting, seed: int) -> Records:
    """Trains a new model on the training samples, once. All ranks must call it together."""
    model = task.model(seed)
    parallel = DistributedDataParallel(model)
    clock = GradientClock(parallel)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0)
    records = Records()
    method = METHODS[name](task, setting, seed)
    done, total = 0, len(task.lengths)
    dist.barrier()
    start = time.perf_counter()
    for step in method:
        weights = step.weights or _token_weights(step.batches)
        begin = time.thread_time()
        for number, (batch, weight) in enumerate(zip(step.batches, weights)):
            last = number == len(step.batches) - 1
            with contextlib.nullcontext() if last else parallel.no_sync():
                (parallel(**batch) * weight).backward()
        records.processor.append(clock.ready_cpu - begin)
        torch.nn.utils.clip_grad_norm_(model.parameters(), _GRADIENT_NORM)
        done += step.samples
        for parameters in optimizer.param_groups:
            parameters["lr"] = LEARNING_RATE * _schedule(done / total)
        optimizer.step()
        optimizer.zero_grad()
        records.samples.append(step.own)
        records.tokens.append(sum(int(b["attention_mask"].sum()) for b in step.batches))
        records.padded.append(sum(b["input_ids"].numel() for b in step.batches))
    records.seconds = time.perf_counter() - start
    method.close()
    records.loss = held_out_loss(model, task, setting.max_tokens)
    return records


def _token_weights(batches: Sequence[Batch]) -> list[float]:
    counts = [int((batch["labels"][:, 1:] >= 0).sum()) for batch in batches]
    everybody = torch.tensor(sum(counts))
    dist.all_reduce(everybody)
    return [dist.get_world_size() * count / int(everybody) for count in counts]


def _schedule(progress: float) -> float:
    """Of samples done, not of steps, so that it is the same for all methods; ends near zero."""
    return max(min(progress / _WARM_UP, (1.01 - progress) / (1 - _WARM_UP)), 0.0)


def calibrate(
    task: Task, max_tokens: int, vocab_size: int, repeats: int
) -> list[tuple[int, int, float]]:
    """Times groups of text of many shapes, while all ranks compute, by processor time: other work
    on the machine is not part of what a group costs. Returns (samples, length, seconds) of each."""
    model = task.model(0)
    longest = int(task.lengths.max())
    lengths = [longest // 2**halvings for halvings in range(6)]
    shapes = [(max(1, int(share * max_tokens) // n), n) for n in lengths for share in (0.25, 1.0)]
    seconds = dict.fromkeys(shapes, float("inf"))
    for repeat in range(repeats + 1):
        for shape in seconds:
            tokens = torch.randint(0, vocab_size, shape)
            dist.barrier()
            begin = time.thread_time()
            model(input_ids=tokens, labels=tokens).backward()
            if repeat:  # the first is for the allocator and the kernels
                seconds[shape] = min(seconds[shape], time.thread_time() - begin)
    return [(samples, length, taken) for (samples, length), taken in seconds.items()]
