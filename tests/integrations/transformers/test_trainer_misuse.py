"""What evenstep and Trainer cannot do together is told at once, with the line to write."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny_trainer import POLICY, documents, make_trainer
from transformers import Trainer

import evenstep
from evenstep.errors import CollateError
from evenstep.integrations import transformers as even


class OwnLoader(Trainer):
    """A user's trainer with a loader of evenstep."""

    accumulate = 1

    def get_train_dataloader(self) -> Any:
        return evenstep.DataLoader(
            self.train_dataset,
            policy=POLICY,
            shuffle=True,
            collate_fn=self.data_collator,
            accumulate=self.accumulate,
        )


@pytest.mark.parametrize("options", [{}, {"max_steps": 3}], ids=["epochs", "steps"])
def test_a_loader_without_install(tmp_path, options: dict[str, Any]) -> None:
    trainer = make_trainer(tmp_path, cls=OwnLoader, **options)
    with pytest.raises(evenstep.ConfigurationError, match=r"trainer = even\.install\(trainer\)"):
        trainer.train()
    assert not trainer.model.seen.flat()


def test_a_loader_for_evaluation(tmp_path) -> None:
    class Evaluated(OwnLoader):
        def get_eval_dataloader(self, *_: Any) -> Any:
            return evenstep.DataLoader(documents(9), batch_size=2)

    trainer = even.install(make_trainer(tmp_path, cls=Evaluated))
    with pytest.raises(evenstep.ConfigurationError, match=r"to evaluate, .* map-style dataset"):
        trainer.evaluate()


@pytest.mark.integrations
@pytest.mark.parametrize("value", ["group_by_length", "batch_rebalance"])
def test_grouping_by_length_is_ignored_loudly(tmp_path, value: Any) -> None:
    trainer = make_trainer(tmp_path)
    name = "train_sampling_strategy"
    if not hasattr(trainer.args, name):
        name, value = "group_by_length", True
    setattr(trainer.args, name, value)
    even.install(trainer, policy=POLICY)
    with pytest.warns(UserWarning, match=f"{name}={value!r} is ignored"):
        trainer.train()
    assert sorted(trainer.model.seen.flat()) == list(range(len(documents())))
    assert getattr(trainer.args, name) == value  # evaluation goes by it


@pytest.mark.integrations
def test_a_collate_function_whose_labels_cannot_be_counted(tmp_path) -> None:
    """Random masks: there is a way to train all the same."""

    def masked(samples: list[Any]) -> Any:
        batch = evenstep.PadCollator()(samples)
        batch["labels"][torch.rand(batch["labels"].shape) < 0.5] = -100
        return batch

    trainer = make_trainer(tmp_path)
    trainer.data_collator = masked
    with pytest.raises(CollateError, match="loss_scaling='sample'"):
        even.install(trainer, policy=POLICY).train()
    again = make_trainer(tmp_path)
    again.data_collator = masked
    even.install(again, policy=POLICY, loss_scaling="sample").train()
    assert again.state.epoch == 1.0
