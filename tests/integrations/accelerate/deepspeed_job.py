"""A loop with Accelerate and DeepSpeed on the CPU, and what it trained on.

torchrun --nproc-per-node 2 deepspeed_job.py '{"folder": ..., "stage": 3, "accumulate": 1}'
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ["DS_ACCELERATOR"] = "cpu"

import deepspeed.ops
import torch
from accelerate import Accelerator
from accelerate.utils import DeepSpeedPlugin, InitProcessGroupKwargs
from deepspeed.utils import safe_get_full_fp32_param

_TESTS = Path(__file__).parents[2]
sys.path[:0] = [str(_TESTS / part) for part in ("", "integrations", "scenarios")]

from tiny_model import TinyModel, flat  # noqa: E402
from update_checks import loader_of  # noqa: E402

from evenstep.integrations import accelerate as even  # noqa: E402

RATE = 1.0

# Else DeepSpeed compiles an all-reduce over shared memory, for minutes.
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False


def main(folder: str, stage: int, accumulate: int) -> None:
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": accumulate,
        "gradient_clipping": 0.0,
        "zero_optimization": {"stage": stage},
    }
    accelerator = Accelerator(
        gradient_accumulation_steps=accumulate,
        deepspeed_plugin=DeepSpeedPlugin(hf_ds_config=config),
        kwargs_handlers=[InitProcessGroupKwargs(backend="gloo")],
    )
    model: Any = TinyModel()
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=RATE)
    model, optimizer, loader = even.prepare(accelerator, model, optimizer, loader_of())

    def parameters() -> torch.Tensor:
        whole = [safe_get_full_fp32_param(p) if stage == 3 else p for p in model.parameters()]
        return flat([p.detach() for p in whole])

    updates: list[dict[str, Any]] = []
    before, samples, steps = parameters(), [], 0
    for batch in loader:
        samples += loader.step.indices
        steps += 1
        with accelerator.accumulate(model):
            accelerator.backward(model(**batch).loss)
            optimizer.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            after = parameters()
            # DeepSpeed has stepped in `backward`, and keeps no gradient.
            gradient = ((before - after) / RATE).tolist()
            updates.append({"samples": samples, "steps": steps, "gradient": gradient})
            before, samples, steps = after, [], 0
    assert not steps
    path = Path(folder) / f"{accelerator.process_index}.json"
    path.write_text(json.dumps(updates))
    accelerator.end_training()


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
