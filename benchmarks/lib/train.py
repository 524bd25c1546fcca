"""One epoch of data-parallel training, timed; the cost of a group; and the held-out loss.

Times of a step on a rank: *data* is waiting for its loader; *compute* lasts from then to the moment
when its last gradient is ready; *ranks* is waiting for the rank that is ready last.
"""

# No `from __future__ import annotations`: DDP looks at the annotations of its hook.

import contextlib
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import psutil
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from benchmarks.lib.methods import METHODS, Setting
from evenstep_demos.text.task import Task
from evenstep_demos.text.train import held_out_loss

_WARM_UP = 0.1  # of the samples
_GRADIENT_NORM = 1.0


@dataclass(frozen=True, kw_only=True)
class Job:
    """What does not depend on the method."""

    task: Task
    device: str
    learning_rate: float
    looks: int = 0
    """How many times an epoch looks at its memory. That time is not counted."""


@dataclass(kw_only=True)
class Records:
    """One rank's epoch, one entry per step. Times are seconds."""

    samples: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    padded: list[int] = field(default_factory=list)
    largest: list[int] = field(default_factory=list)
    """Padded tokens of the largest micro-batch."""
    data: list[float] = field(default_factory=list)
    """From the second step on; one more is for the end of the epoch."""
    begin: list[float] = field(default_factory=list)
    ready: list[float] = field(default_factory=list)
    """When the last gradient was computed, on the clock that all processes of a machine share."""
    compute_cpu: list[float] = field(default_factory=list)
    """Between the two: on the CPU, processor time of the training thread."""
    start: float = 0.0
    """From asking for an iterator to the first batch."""
    total: float = 0.0
    """From the first batch, on all ranks, to the end of the last step."""
    processor: float = 0.0
    """Processor seconds of this process and those of its loader, in the whole epoch."""
    memory: float = 0.0
    """Most bytes (PSS) of this process and those of its loader, of all looks."""
    loss: float = 0.0
    """Held out, after the epoch; equal on all ranks."""


class _Clock:
    """Notes when backward has computed its last gradient; then does what DDP does without it."""

    def __init__(self, group: Any, device: str) -> None:
        self.group, self.device = group, device
        self.ready = self.cpu = 0.0


def _note_and_reduce(clock: _Clock, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    if bucket.is_last():
        _synchronize(clock.device)
        clock.cpu, clock.ready = _now(clock.device), time.perf_counter()
    return allreduce_hook(clock.group, bucket)


def _synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def _autocast(device: str) -> Any:
    if device == "cuda":
        return torch.autocast("cuda", torch.bfloat16)
    return contextlib.nullcontext()


def _model(job: Job, seed: int) -> torch.nn.Module:
    if job.device == "cuda":
        torch.cuda.set_device(dist.get_rank())
        torch.backends.cuda.matmul.allow_tf32 = True
    return job.task.model(seed).to(job.device)


def epoch(job: Job, name: str, setting: Setting, seed: int) -> Records:
    """Trains a new model on the training samples, once. All ranks must call it together."""
    group = dist.new_group(backend="nccl") if job.device == "cuda" else dist.group.WORLD
    model = _model(job, seed)
    parallel = DistributedDataParallel(model, process_group=group)
    clock = _Clock(group, job.device)
    parallel.register_comm_hook(clock, _note_and_reduce)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0)
    records = Records()
    method = METHODS[name](job.task, setting, seed)
    done, total = 0, len(job.task.lengths)
    used = sum(os.times()[:4])
    dist.barrier()
    asked = time.perf_counter()
    stream = iter(method)
    step = next(stream, None)
    records.start = time.perf_counter() - asked
    dist.barrier()
    start = time.perf_counter()
    while step is not None:
        batches = [on_device(batch, job.device) for batch in step.batches]
        weights = step.weights or _token_weights(batches)
        begin, begin_cpu = time.perf_counter(), _now(job.device)
        for number, (batch, weight) in enumerate(zip(batches, weights)):
            last = number == len(batches) - 1
            with contextlib.nullcontext() if last else parallel.no_sync():
                with _autocast(job.device):
                    loss = parallel(**batch)
                (loss * weight).backward()
        records.begin.append(begin)
        records.ready.append(clock.ready)
        records.compute_cpu.append(clock.cpu - begin_cpu)
        torch.nn.utils.clip_grad_norm_(model.parameters(), _GRADIENT_NORM)
        done += step.samples
        for parameters in optimizer.param_groups:
            parameters["lr"] = job.learning_rate * _schedule(done / total)
        optimizer.step()
        optimizer.zero_grad()
        padded = [b["input_ids"].numel() for b in step.batches]
        records.samples.append(step.own)
        records.tokens.append(sum(int(real_tokens(b).sum()) for b in step.batches))
        records.padded.append(sum(padded))
        records.largest.append(max(padded))
        if job.looks and len(records.samples) % -(-setting.steps // job.looks) == 0:
            begin = time.perf_counter()
            records.memory = max(records.memory, memory())
            dist.barrier()
            start += time.perf_counter() - begin
        asked = time.perf_counter()
        step = next(stream, None)
        records.data.append(time.perf_counter() - asked)
    _synchronize(job.device)
    records.total = time.perf_counter() - start
    method.close()
    del stream
    records.processor = sum(os.times()[:4]) - used  # children's included, once they have ended
    with _autocast(job.device):
        records.loss = held_out_loss(model, job.task, setting.max_tokens, job.device)
    return records


def read(job: Job, name: str, setting: Setting, seed: int) -> Records:
    """The data path of `epoch` alone, without a model. All ranks must call it together."""
    records = Records()
    method = METHODS[name](job.task, setting, seed)
    used = sum(os.times()[:4])
    dist.barrier()
    asked = time.perf_counter()
    for step in method:
        records.start = records.start or time.perf_counter() - asked
        records.samples.append(step.own)
    records.total = time.perf_counter() - asked
    # Before it closes, as not all packages wait for their processes then.
    records.processor = sum(os.times()[:4]) + sum(sum(p.cpu_times()[:4]) for p in started()) - used
    method.close()
    return records


def on_device(batch: Mapping[str, Any], device: str) -> dict[str, Any]:
    """The batch, its tensors on the device."""
    return {
        name: value.to(device, non_blocking=True) if isinstance(value, torch.Tensor) else value
        for name, value in batch.items()
    }


def real_tokens(batch: Mapping[str, Any]) -> torch.Tensor:
    """1 for each token that is no padding."""
    return batch.get("attention_mask", torch.ones_like(batch["input_ids"]))


def memory() -> float:
    """Bytes (PSS) of this process and all that it has started."""
    total = psutil.Process().memory_full_info().pss
    for process in started():
        with contextlib.suppress(psutil.NoSuchProcess):
            total += process.memory_full_info().pss
    return float(total)


def started() -> list[psutil.Process]:
    """The processes that this one has started, and those that they have."""
    return psutil.Process().children(recursive=True)


def _token_weights(batches: list[dict[str, torch.Tensor]]) -> list[float]:
    counts = [int((batch["labels"][:, 1:] >= 0).sum()) for batch in batches]
    everybody = torch.tensor(sum(counts))
    dist.all_reduce(everybody)
    return [dist.get_world_size() * count / int(everybody) for count in counts]


def _schedule(progress: float) -> float:
    """Of samples done, not of steps, so that it is the same for all methods; ends near zero."""
    return max(min(progress / _WARM_UP, (1.01 - progress) / (1 - _WARM_UP)), 0.0)


def calibrate(
    job: Job, max_tokens: int, vocab_size: int, repeats: int
) -> list[tuple[int, int, float]]:
    """Times groups of text of many shapes, while all ranks compute: (samples, length, seconds)."""
    model = _model(job, 0)
    longest = int(job.task.lengths.max())
    lengths = [longest // 2**halvings for halvings in range(6)]
    shapes = [(max(1, int(share * max_tokens) // n), n) for n in lengths for share in (0.25, 1.0)]
    seconds = dict.fromkeys(shapes, float("inf"))
    for repeat in range(repeats + 1):
        for shape in seconds:
            tokens = torch.randint(0, vocab_size, shape, device=job.device)
            dist.barrier()
            _synchronize(job.device)
            begin = _now(job.device)
            with _autocast(job.device):
                loss = model(tokens, tokens)
            loss.backward()
            _synchronize(job.device)
            if repeat:  # the first is for the allocator and the kernels
                seconds[shape] = min(seconds[shape], _now(job.device) - begin)
    return [(samples, length, taken) for (samples, length), taken in seconds.items()]


def _now(device: str) -> float:
    """On the CPU, processor time: other work on the machine is not part of what a group costs."""
    return time.perf_counter() if device == "cuda" else time.thread_time()
