"""TRL's SFTTrainer: its own loss, data preparation and metrics."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from launched_rank import as_rank
from ranks import Rank, run
from test_trainer_evaluation import truth
from tiny_trainer import (
    POLICY,
    TellingLlama,
    Witness,
    check_updates,
    documents,
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
    dataset = datasets.Dataset.from_dict(fields)
    trainer = Told(
        model=model,
        args=trl_arguments(
            trl.SFTConfig,
            folder,
            gradient_accumulation_steps=accumulate,
            max_length=None,
            completion_only_loss=masks,
            pad_token="<pad>",
        ),
        train_dataset=dataset,
        eval_dataset=dataset,
        processing_class=tokenizer(),
    )
    trainer.add_callback(Witness(model.seen))
    even.install(trainer, policy=POLICY).train()
    check_updates(trainer, model)
    entry = next(e for e in trainer.state.log_history if "loss" in e)
    assert {"mean_token_accuracy", "num_tokens", "padding", "imbalance"} <= set(entry)
    *_, loss = truth(model, count=N)
    assert trainer.evaluate()["eval_loss"] == pytest.approx(loss, rel=1e-6)


@pytest.mark.parametrize(("accumulate", "masks"), [(1, False), (3, True)])
def test_sft(tmp_path, accumulate: int, masks: bool) -> None:
    run(train, 2, tmp_path, accumulate, masks, folder=tmp_path, within=150)
