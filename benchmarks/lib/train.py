"""One epoch of data-parallel training, timed; the cost of a group; and the held-out loss.

Times of a step on a rank: *data* is waiting for its loader; *compute* lasts from then to the moment
when its last gradient is ready; *ranks* is waiting for the rank that is ready last.
"""

# No `from __future__ import annotations`: DDP looks at the annotations of its hook.

import contextlib
import os
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

import evenstep
from benchmarks.lib.corpus import Documents, Tokens
from benchmarks.lib.methods import METHODS, Setting
from evenstep.plan.groups.token_budget_groups import token_budget_groups
from evenstep_demos.models import PaddedGPT
from evenstep_demos.text.prepared_text import END

_WARM_UP = 0.1  # of the samples
_GRADIENT_NORM = 1.0


@dataclass(frozen=True, kw_only=True)
class Job:
    """What does not depend on the method."""

    training: Documents
    held_out: Tokens
    device: str
    model: dict[str, int]
    learning_rate: float


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


def _model(job: Job, seed: int) -> PaddedGPT:
    if job.device == "cuda":
        torch.cuda.set_device(dist.get_rank())
        torch.backends.cuda.matmul.allow_tf32 = True
    torch.manual_seed(seed)
    return PaddedGPT(**job.model).to(job.device)


def epoch(job: Job, name: str, setting: Setting, seed: int) -> Records:
    """Trains a new model on the training samples, once. All ranks must call it together."""
    group = dist.new_group(backend="nccl") if job.device == "cuda" else dist.group.WORLD
    model = _model(job, seed)
    parallel = DistributedDataParallel(model, process_group=group)
    clock = _Clock(group, job.device)
    parallel.register_comm_hook(clock, _note_and_reduce)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0)
    records = Records()
    method = METHODS[name](job.training, setting, seed)
    done, total = 0, len(job.training)
    used = sum(os.times()[:4])
    dist.barrier()
    asked = time.perf_counter()
    stream = iter(method)
    step = next(stream, None)
    records.start = time.perf_counter() - asked
    dist.barrier()
    start = time.perf_counter()
    while step is not None:
        batches = [
            {k: b[k].to(job.device, non_blocking=True) for k in ("input_ids", "labels")}
            for b in step.batches
        ]
        weights = step.weights or _token_weights(batches)
        begin, begin_cpu = time.perf_counter(), _now(job.device)
        for number, (batch, weight) in enumerate(zip(batches, weights)):
            last = number == len(batches) - 1
            with contextlib.nullcontext() if last else parallel.no_sync():
                with _autocast(job.device):
                    loss = parallel(batch["input_ids"], batch["labels"])
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
        records.samples.append(sum(len(b["input_ids"]) for b in step.batches))
        records.tokens.append(sum(int(b["attention_mask"].sum()) for b in step.batches))
        records.padded.append(sum(padded))
        records.largest.append(max(padded))
        asked = time.perf_counter()
        step = next(stream, None)
        records.data.append(time.perf_counter() - asked)
    _synchronize(job.device)
    records.total = time.perf_counter() - start
    method.close()
    del stream
    records.processor = sum(os.times()[:4]) - used  # children's included, once they have ended
    records.loss = _held_out_loss(job, model, setting.max_tokens)
    return records


def _token_weights(batches: list[dict[str, torch.Tensor]]) -> list[float]:
    counts = [int((batch["labels"][:, 1:] >= 0).sum()) for batch in batches]
    everybody = torch.tensor(sum(counts))
    dist.all_reduce(everybody)
    return [dist.get_world_size() * count / int(everybody) for count in counts]


def _schedule(progress: float) -> float:
    """Of samples done, not of steps, so that it is the same for all methods; ends near zero."""
    return max(min(progress / _WARM_UP, (1.01 - progress) / (1 - _WARM_UP)), 0.0)


@torch.no_grad()
def _held_out_loss(job: Job, model: PaddedGPT, max_tokens: int) -> float:
    """Mean over all predicted tokens of all held-out samples."""
    mine = np.arange(dist.get_rank(), len(job.held_out), dist.get_world_size())
    groups = token_budget_groups(job.held_out.lengths[mine], max_tokens)
    collate = evenstep.PadCollator(pad_token_id=END)
    sums = torch.zeros(2, dtype=torch.float64)
    for index in range(len(groups)):
        batch = collate([job.held_out[int(i)] for i in mine[groups.group(index)]])
        labels = batch["labels"].to(job.device)
        with _autocast(job.device):
            sums[0] += float(model(batch["input_ids"].to(job.device), labels, reduction="sum"))
        sums[1] += int((labels[:, 1:] >= 0).sum())
    dist.all_reduce(sums)
    return float(sums[0] / sums[1])


def calibrate(job: Job, max_tokens: int, repeats: int) -> list[tuple[int, int, float]]:
    """Times groups of many shapes, while all ranks compute: (samples, length, seconds)."""
    model = _model(job, 0)
    longest = int(job.training.lengths.max())
    lengths = [longest // 2**halvings for halvings in range(6)]
    shapes = [(max(1, int(share * max_tokens) // n), n) for n in lengths for share in (0.25, 1.0)]
    seconds = dict.fromkeys(shapes, float("inf"))
    for repeat in range(repeats + 1):
        for shape in seconds:
            tokens = torch.randint(0, job.model["vocab_size"], shape, device=job.device)
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
