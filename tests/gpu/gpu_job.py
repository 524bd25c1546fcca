"""DistributedDataParallel over pinned batches, on GPUs or the CPU, and what it trained on.

torchrun --nproc-per-node 2 gpu_job.py '{"folder": ..., "device": "cuda", "backend": "nccl"}'
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

_TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(_TESTS / part) for part in ("", "integrations", "scenarios")]

from tiny_model import TinyModel, flat  # noqa: E402
from update_checks import loader_of  # noqa: E402

ACCUMULATE = 2
RATE = 0.1


def main(folder: str, device: str, backend: str) -> None:
    where = torch.device(device, int(os.environ["LOCAL_RANK"])) if device == "cuda" else None
    if where is not None:
        torch.cuda.set_device(where)
    dist.init_process_group(backend, device_id=where if backend == "nccl" else None)
    model = DistributedDataParallel(TinyModel().to(where))
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    loader = loader_of(ACCUMULATE, pin_memory=True, num_workers=1)
    updates: list[dict[str, Any]] = []
    samples, steps = [], 0
    for batch, step in loader.steps():
        samples += step.indices
        steps += 1
        tensors = {key: value for key, value in batch.items() if torch.is_tensor(value)}
        pinned = {value.is_pinned() for value in tensors.values() if value.numel()}
        assert pinned <= {device == "cuda"}
        # The copies run beside the kernels of the step before.
        there = {key: value.to(where, non_blocking=True) for key, value in tensors.items()}
        (model(**there).loss * step.loss_scale).backward()
        if step.ends_update:
            gradient = flat([p.grad for p in model.parameters()]).tolist()
            updates.append({"samples": samples, "steps": steps, "gradient": gradient})
            samples, steps = [], 0
            optimizer.step()
            optimizer.zero_grad()
    loader.close()
    Path(folder, f"{dist.get_rank()}.json").write_text(json.dumps(updates))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
