"""Trainer with a model whose parameters are on several ranks, on the CPU, and what it trained on.

The ways: `fsdp2` of Accelerate, as TrainingArguments ask for it; `loaded`, the FSDP2 with which
Transformers loads a model; DeepSpeed's `zero2` and `zero3`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch.distributed as dist
import transformers
from accelerate import PartialState
from sharded_on_cpu import CpuAccelerator, parameters_of, zero
from tiny_trainer import (
    POLICY,
    MeanLlama,
    Seen,
    TellingLlama,
    gathered,
    losses,
    make_trainer,
    together,
)
from transformers import TrainerCallback

from evenstep.integrations import transformers as even

RATE = 1.0


class Differences(TrainerCallback):
    """Notes the gradient of every update as what SGD made of the parameters: DeepSpeed keeps no
    gradient."""

    def __init__(self, model: Any, seen: Seen, stop: int | None) -> None:
        self._model = model
        self._seen = seen
        self._stop = stop

    def on_train_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        self._before = parameters_of(self._model)

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        after = parameters_of(self._model)
        self._seen.gradients.append((self._before - after) / RATE)
        self._before = after
        self._seen.samples.append([])
        if state.global_step == self._stop:
            os.kill(os.getpid(), signal.SIGKILL)


def options_of(way: str) -> dict[str, Any]:
    """Training arguments. Those of the process are set as well."""
    if way == "fsdp2":
        transformers.trainer.Accelerator = CpuAccelerator
        config = {
            "version": 2,
            "transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"],
            # FULL_STATE_DICT gathers tensors in a way that safetensors cannot write on a CPU.
            "state_dict_type": "SHARDED_STATE_DICT",
        }
        return {"fsdp": True, "fsdp_config": config}
    if way == "loaded":
        return {}
    # As `accelerate launch` and `accelerate config` do, but for Gloo.
    os.environ["ACCELERATE_USE_DEEPSPEED"] = "true"
    PartialState(backend="gloo")
    return {
        "use_cpu": False,
        "accelerator_config": {"use_configured_state": True},
        "deepspeed": {
            "train_micro_batch_size_per_gpu": "auto",
            "gradient_accumulation_steps": "auto",
            "gradient_clipping": "auto",
            "zero_optimization": zero(int(way[-1])),
            "zero_force_ds_cpu_optimizer": False,
        },
    }


def model_of(kind: type[TellingLlama], way: str, folder: Path) -> Any:
    if way != "loaded":
        return kind()
    if dist.get_rank() == 0:
        kind().save_pretrained(folder / "model")
    dist.barrier()
    sharded = transformers.DistributedConfig(fsdp_size=dist.get_world_size())
    return kind.from_pretrained(folder / "model", distributed_config=sharded)


def main(
    folder: str,
    way: str,
    *,
    mean: bool = False,
    accumulate: int = 1,
    stop: int | None = None,
    resume: bool = False,
    **options: Any,
) -> None:
    if "zero" not in way:
        dist.init_process_group("gloo")
    asked = options_of(way)
    model = model_of(MeanLlama if mean else TellingLlama, way, Path(folder))
    trainer = make_trainer(
        Path(folder) / "trained",
        model=model,
        gradient_accumulation_steps=accumulate,
        lr_scheduler_type="constant",
        learning_rate=RATE,
        witness=Differences(model, model.seen, stop),
        **asked,
        **options,
    )
    even.install(trainer, policy=POLICY).train(resume_from_checkpoint=resume or None)
    report = {
        "samples": [update for update in together(gathered(model.seen)) if update],
        "gradients": [gradient.tolist() for gradient in model.seen.gradients],
        "losses": losses(trainer),
        "epoch": trainer.state.epoch,
    }
    (Path(folder) / f"{dist.get_rank()}.json").write_text(json.dumps(report))
    dist.barrier()


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
