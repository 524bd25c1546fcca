"""`update_tokens` in Trainer: evenstep chooses how many batches an update has."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny_trainer import (
    TellingLlama,
    documents,
    losses,
    make_trainer,
    of_one_batch,
)

import evenstep
from evenstep.cost import FittedCost
from evenstep.errors import ConfigurationError
from evenstep.integrations import transformers as even

pytestmark = pytest.mark.integrations
# As measured where groups of 18 tokens keep the accelerator busy.
COST = FittedCost(per_group=2.0, per_token=1.0, per_pair=0.0)
POLICY = evenstep.Even(max_tokens=128, cost=COST)


@pytest.mark.parametrize("asked", [None, 256, "auto"])
def test_updates_have_several_batches(tmp_path: Any, asked: int | str | None) -> None:
    model = TellingLlama()
    trainer = make_trainer(tmp_path, model=model)
    even.install(trainer, policy=POLICY, **({} if asked is None else {"update_tokens": asked}))
    trainer.train()
    assert trainer.args.gradient_accumulation_steps == 1
    updates = [update for update in model.seen.samples if update]
    for update, gradient, loss in zip(updates, model.seen.gradients, losses(trainer), strict=True):
        expected_loss, expected = of_one_batch(model, update)
        assert loss == pytest.approx(expected_loss, rel=1e-5, abs=5.1e-5)
        torch.testing.assert_close(gradient, expected, rtol=1e-5, atol=1e-5 * expected.abs().max())
    assert sorted(i for update in updates for i in update) == list(range(61))
    assert min([each for each in model.seen.batches if each][:-1]) >= 4
    assert trainer.state.epoch == 1.0
    tokens = [sum(len(documents()[i]["input_ids"]) for i in each) for each in updates]
    mean = sum(tokens[:-1]) / len(tokens[:-1])
    assert mean == pytest.approx(256 if asked == 256 else 115, rel=0.3)


def test_deepspeed_keeps_its_number(tmp_path: Any) -> None:
    trainer = make_trainer(tmp_path)
    trainer.is_deepspeed_enabled = True
    even.install(trainer, policy=POLICY, update_tokens=256)
    with pytest.raises(ConfigurationError, match=r"update_tokens=256.*DeepSpeed"):
        trainer.get_train_dataloader()


def test_what_fits_is_found_while_training(tmp_path: Any) -> None:
    model = TellingLlama()
    trainer = make_trainer(tmp_path, model=model, max_steps=3)
    even.install(trainer, policy=evenstep.Even("auto", cost=COST))
    trainer.train()
    updates = [update for update in model.seen.samples if update]
    assert len(updates) == 3
    for update, gradient in zip(updates, model.seen.gradients, strict=True):
        _, expected = of_one_batch(model, update)
        torch.testing.assert_close(gradient, expected, rtol=1e-5, atol=1e-5 * expected.abs().max())
    seen = [index for update in updates for index in update]
    assert len(seen) == len(set(seen))


def test_how_many_updates_there_are_is_not_known_before(tmp_path: Any) -> None:
    trainer = make_trainer(tmp_path)
    even.install(trainer, policy=evenstep.Even("auto", cost=COST))
    with pytest.raises(ConfigurationError, match="max_steps"):
        trainer.train()
    trainer = make_trainer(tmp_path, max_steps=3)
    even.install(trainer, policy=evenstep.Even("auto", cost=COST), update_tokens=100_000)
    with pytest.raises(ConfigurationError, match="pass accumulate="):
        trainer.train()
