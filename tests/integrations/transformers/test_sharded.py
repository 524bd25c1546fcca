"""DeepSpeed ZeRO through Trainer: the losses of DDP, and a checkpoint to go on from.

FSDP is not here: Accelerate runs ranks without accelerators under DDP, whatever is asked for.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from ranks import Rank, run
from tiny_trainer import (
    POLICY,
    TellingLlama,
    arguments,
    as_rank,
    documents,
    gathered,
    losses,
    together,
)
from transformers import Trainer

import evenstep
from evenstep.integrations import transformers as even

pytest.importorskip("deepspeed")
pytestmark = pytest.mark.integrations

WITHIN = 170.0
SAVED = 3


def zero(stage: int) -> dict[str, Any]:
    return {
        "zero_optimization": {"stage": stage},
        "train_micro_batch_size_per_gpu": "auto",
        "train_batch_size": "auto",
        "gradient_accumulation_steps": "auto",
        "gradient_clipping": "auto",
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
    }


SHARDINGS: dict[str, dict[str, Any]] = {
    "ddp": {},
    "zero2": {"deepspeed": zero(2), "use_cpu": False},
    "zero3": {"deepspeed": zero(3), "use_cpu": False},
}


def train(rank: Rank, folder: Path, sharding: str, accumulate: int, resume: bool) -> dict[str, Any]:
    as_rank(rank.rank, rank.world_size)
    os.environ["DS_ACCELERATOR"] = "cpu"
    args = arguments(
        folder,
        learning_rate=1e-2,
        gradient_accumulation_steps=accumulate,
        max_grad_norm=1.0,
        save_strategy="steps",
        save_steps=SAVED,
        num_train_epochs=1 if accumulate == 1 else 2,
        **SHARDINGS[sharding],
    )
    model = TellingLlama()
    seen = model.seen
    trainer = even.install(
        Trainer(
            model=model,
            args=args,
            train_dataset=documents(),
            data_collator=evenstep.PadCollator(),
        ),
        policy=POLICY,
    )
    assert trainer.is_deepspeed_enabled == (sharding != "ddp")
    trainer.train(resume_from_checkpoint=str(folder / f"checkpoint-{SAVED}") if resume else None)
    return {
        "updates": together(gathered(seen)),
        "losses": losses(trainer),
        "norms": [e["grad_norm"] for e in trainer.state.log_history if "loss" in e],
        "steps": trainer.state.global_step,
    }


def job(tmp_path: Path, sharding: str, accumulate: int, resume: bool = False) -> dict[str, Any]:
    own = tmp_path / f"{sharding}-{resume}"
    own.mkdir()
    args = (tmp_path / sharding, sharding, accumulate, resume)
    return run(train, 2, *args, folder=own, within=WITHIN)[0]


@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("sharding", ["zero2", "zero3"])
def test_losses_are_those_of_ddp(tmp_path, sharding: str, accumulate: int) -> None:
    expected = job(tmp_path, "ddp", accumulate)
    found = job(tmp_path, sharding, accumulate)
    assert found["updates"] == expected["updates"]
    assert found["losses"] == pytest.approx(expected["losses"], rel=1e-4)
    assert found["norms"] == pytest.approx(expected["norms"], rel=1e-3)
    again = job(tmp_path, sharding, accumulate, resume=True)
    assert again["losses"] == pytest.approx(found["losses"], rel=1e-4)
    assert again["steps"] == found["steps"]
