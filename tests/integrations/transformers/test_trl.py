"""TRL's SFTTrainer: its own loss, data preparation and metrics."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from launched_rank import as_rank
from ranks import Rank, run
from tiny_trainer import (
    POLICY,
    TellingLlama,
    Witness,
    documents,
    gathered,
    losses,
    of_one_batch,
    together,
    tokenizer,
    trl_arguments,
)

from evenstep.integrations import transformers as even

datasets = pytest.importorskip("datasets")
trl = pytest.importorskip("trl")
pytestmark = pytest.mark.integrations

N = len(documents())


class Told(trl.SFTTrainer):  # type: ignore[misc,name-defined]
    """A user's trainer that tells what it was trained on: SFTTrainer's model takes no more fields
    than it knows."""

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        telling = self.accelerator.unwrap_model(model)
        identities = [known[tuple(row)] for row in trimmed(inputs)]
        telling.tell(inputs["labels"], torch.tensor(identities))
        return super().compute_loss(model, inputs, *args, **kwargs)


def trimmed(inputs: Any) -> list[list[int]]:
    rows = zip(inputs["input_ids"], inputs["attention_mask"], strict=True)
    return [tokens[mask.bool()].tolist() for tokens, mask in rows]


known = {tuple(documents()[index]["input_ids"].tolist()): index for index in range(N)}


def train(rank: Rank, folder: Any, accumulate: int, masks: bool) -> None:
    as_rank(rank)
    rows = [documents()[index] for index in range(N)]
    fields: dict[str, Any] = {"input_ids": [row["input_ids"].tolist() for row in rows]}
    if masks:
        fields["completion_mask"] = [(row["labels"] != -100).long().tolist() for row in rows]
    else:
        fields["labels"] = [row["labels"].tolist() for row in rows]
    model = TellingLlama()
    config = trl_arguments(
        trl.SFTConfig,
        folder,
        gradient_accumulation_steps=accumulate,
        max_length=None,
        completion_only_loss=masks,
        pad_token="<pad>",
    )
    trainer = even.install(
        Told(
            model=model,
            args=config,
            train_dataset=datasets.Dataset.from_dict(fields),
            processing_class=tokenizer(),
        ),
        policy=POLICY,
    )
    trainer.add_callback(Witness(model))
    trainer.train()
    updates = [update for update in together(gathered(model.seen)) if update]
    assert sorted(i for update in updates for i in update) == list(range(N))
    logged = losses(trainer)
    for update, gradient, loss in zip(updates, model.seen.gradients, logged, strict=True):
        mean, expected = of_one_batch(model, update)
        assert loss == pytest.approx(mean, rel=1e-5)
        limit = 1e-5 * expected.abs().max()
        torch.testing.assert_close(gradient, expected, rtol=1e-5, atol=limit)
    entry = next(e for e in trainer.state.log_history if "loss" in e)
    assert {"mean_token_accuracy", "num_tokens", "padding", "imbalance"} <= set(entry)


@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("masks", [False, True], ids=["labels", "completion-mask"])
def test_sft(tmp_path, accumulate: int, masks: bool) -> None:
    run(train, 2, tmp_path, accumulate, masks, folder=tmp_path, within=150)
