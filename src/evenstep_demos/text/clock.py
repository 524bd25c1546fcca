"""Notes when a rank's own backward pass is done, apart from the exchange of gradients after it.

DDP calls its communication hook with each bucket of gradients as soon as this rank has computed
them; the last bucket ends the pass. The hook then does what DDP does without one.
"""

# No `from __future__ import annotations` here: DDP reads the hook's annotations, and needs the
# types themselves, not their names.

import time

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel


class GradientClock:
    """Notes the end of each backward pass of `model`, as its only communication hook."""

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
