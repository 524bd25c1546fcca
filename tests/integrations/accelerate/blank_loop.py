"""A loop with DeepSpeed's ZeRO-3 on rows few of which have images."""

from __future__ import annotations

import json
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import DeepSpeedPlugin, InitProcessGroupKwargs
from sharded_on_cpu import parameters_of, zero

from blank_job import FAMILY, RATE, loader_of
from evenstep.integrations import accelerate as even

PATIENCE = timedelta(seconds=20)


def accelerator_of() -> Accelerator:
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_clipping": 0.0,
        # All parameters are spread, small ones too.
        "zero_optimization": zero(3, stage3_param_persistence_threshold=0),
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
    path = Path(folder) / f"{accelerator.process_index}.json"
    path.write_text(json.dumps([rows, parameters_of(model).tolist()]))
    accelerator.end_training()


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
