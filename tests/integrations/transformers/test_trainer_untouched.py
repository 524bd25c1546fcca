"""Trainer and TRL's SFTTrainer over a dataset that opens its file in its first ``__getitem__``."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
from open_handles import Handle, Unmarked
from tiny_trainer import arguments, tiny_config
from transformers import LlamaForCausalLM, Trainer

import evenstep
from evenstep.integrations import transformers as even

N = 200


def noting(kind: Any) -> Any:
    """A class of trainers that note what each sample asked for and got."""

    class Noting(kind):  # type: ignore[misc]
        asked: tuple[int, ...] = ()
        got: tuple[int, ...] = ()

        def training_step(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            if (inputs["labels"] != -100).any():  # others fill up a short update
                self.asked += tuple(inputs["asked"].tolist())
                self.got += tuple(inputs["got"].tolist())
            inputs = {name: inputs[name] for name in ("input_ids", "attention_mask", "labels")}
            return super().training_step(model, inputs, *args, **kwargs)

    return Noting


class Pad:
    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, samples: list[dict[str, Any]]) -> dict[str, Any]:
        self.calls += 1
        return evenstep.PadCollator()(samples)


def check(trainer: Any, **options: Any) -> None:
    policy = evenstep.Even(max_tokens=2048)
    even.install(trainer, policy=policy, **options).train()
    assert sorted(trainer.asked) == list(range(N))
    assert trainer.got == trainer.asked


def settings(folder: Path) -> Any:
    return arguments(
        folder, remove_unused_columns=False, dataloader_num_workers=2, logging_steps=10**6
    )


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"packed": False, "update_tokens": 6000}])
def test_trainer(options: dict[str, Any], tmp_path: Path) -> None:
    dataset: Handle = Unmarked(tmp_path, N)
    before, collate_fn = copy.copy(vars(dataset)), Pad()
    trainer = noting(Trainer)(
        model=LlamaForCausalLM(tiny_config()),
        args=settings(tmp_path / "out"),
        train_dataset=dataset,
        data_collator=collate_fn,
    )
    check(trainer, **options)
    assert vars(dataset) == before
    assert collate_fn.calls == 0
