"""A loop with Accelerate and a model whose parameters are on several ranks, on the CPU, and what it
trained on.

The ways: `fsdp2` of Accelerate; `own`, a model that the script has sharded before; DeepSpeed's
`zero2` and `zero3`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import (
    DeepSpeedPlugin,
    FullyShardedDataParallelPlugin,
    InitProcessGroupKwargs,
)
from sharded_on_cpu import CpuAccelerator, parameters_of, zero
from tiny_model import TinyModel
from torch.distributed.fsdp import fully_shard
from update_checks import loader_of

from evenstep.integrations import accelerate as even

RATE = 1.0


def accelerator_of(way: str, accumulate: int) -> Accelerator:
    if way == "own":
        return Accelerator(cpu=True, gradient_accumulation_steps=accumulate)
    if way == "fsdp2":
        plugin = FullyShardedDataParallelPlugin(
            fsdp_version=2,
            auto_wrap_policy="transformer_based_wrap",
            transformer_cls_names_to_wrap=["Block"],
            state_dict_type="SHARDED_STATE_DICT",
        )
        return CpuAccelerator(cpu=True, gradient_accumulation_steps=accumulate, fsdp_plugin=plugin)
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": accumulate,
        "gradient_clipping": 0.0,
        "zero_optimization": zero(int(way[-1])),
    }
    return Accelerator(
        gradient_accumulation_steps=accumulate,
        deepspeed_plugin=DeepSpeedPlugin(hf_ds_config=config),
        kwargs_handlers=[InitProcessGroupKwargs(backend="gloo")],
    )


def main(
    folder: str,
    way: str,
    accumulate: int,
    *,
    save: int | None = None,
    stop: int | None = None,
    load: bool = False,
) -> None:
    """
    Args:
        save: updates before a checkpoint is saved.
        stop: updates before the ranks kill themselves.
        load: begin with the checkpoint.
    """
    accelerator = accelerator_of(way, accumulate)
    model: Any = TinyModel()
    if way == "zero3":
        model.float()  # which refuses float64
    if way == "own":
        for block in model.blocks:
            fully_shard(block)
        fully_shard(model)
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=RATE)
    if way == "own":
        optimizer, loader = even.prepare(accelerator, optimizer, loader_of())
    else:
        model, optimizer, loader = even.prepare(accelerator, model, optimizer, loader_of())
    saved = str(Path(folder) / "saved")
    if load:
        accelerator.load_state(saved)
    updates: list[dict[str, Any]] = []
    before, samples, steps = parameters_of(model), [], 0
    for batch in loader:
        samples += loader.step.indices
        steps += 1
        with accelerator.accumulate(model):
            accelerator.backward(model(**batch).loss)
            optimizer.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            after = parameters_of(model)
            # DeepSpeed has stepped in `backward`, and keeps no gradient.
            gradient = ((before - after) / RATE).tolist()
            updates.append({"samples": samples, "steps": steps, "gradient": gradient})
            before, samples, steps = after, [], 0
            if len(updates) == save:
                accelerator.save_state(saved)
            if len(updates) == stop:
                os.kill(os.getpid(), signal.SIGKILL)
    assert not steps
    path = Path(folder) / f"{accelerator.process_index}.json"
    path.write_text(json.dumps(updates))
    accelerator.end_training()


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
