"""A loop with DeepSpeed's ZeRO-3 on rows few of which have images.

torchrun --nproc-per-node 2 blank_loop.py '{"folder": ...}'
"""

from __future__ import annotations

import json
import os
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

os.environ["DS_ACCELERATOR"] = "cpu"

import torch
from accelerate import Accelerator
from accelerate.utils import DeepSpeedPlugin, InitProcessGroupKwargs

_TESTS = Path(__file__).parents[2]
sys.path[:0] = [str(_TESTS / part) for part in ("", "integrations", "scenarios")]

from blank_job import FAMILY, RATE, flat, loader_of  # noqa: E402
from evenstep.integrations import accelerate as even  # noqa: E402

PATIENCE = timedelta(seconds=20)


def accelerator_of() -> Accelerator:
    import deepspeed.ops

    # Else DeepSpeed compiles an all-reduce over shared memory, for minutes.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_clipping": 0.0,
        # All parameters are spread, small ones too.
        "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0},
    }
    return Accelerator(
        deepspeed_plugin=DeepSpeedPlugin(hf_ds_config=config),
        kwargs_handlers=[InitProcessGroupKwargs(backend="gloo", timeout=PATIENCE)],
    )


def main(folder: str) -> None:
    model: Any = FAMILY.model(0)  # whole: later, transformers would make it in parts
    accelerator = accelerator_of()
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=RATE)
    model, optimizer, loader = even.prepare(accelerator, model, optimizer, loader_of(None))
    rows = []
    for batch in loader:
        rows.append(list(loader.step.indices))
        accelerator.backward(model(**batch).loss)
        optimizer.step()
        optimizer.zero_grad()
    from deepspeed.utils import safe_get_full_fp32_param

    parameters = flat([safe_get_full_fp32_param(p) for p in model.parameters()])
    path = Path(folder) / f"{accelerator.process_index}.json"
    path.write_text(json.dumps([rows, parameters.tolist()]))
    accelerator.end_training()


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
