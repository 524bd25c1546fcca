"""Models of other kinds than causal ones. Trainer takes them for ones that divide their loss by
`num_items_in_batch`, since they accept any argument, and they return a mean."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from launched_rank import as_rank
from ranks import Rank, run
from tiny_trainer import POLICY, Seen, Witness, arguments, documents, gathered, losses, together
from torch.utils.data import Dataset
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    T5Config,
    T5ForConditionalGeneration,
    Trainer,
    TrainingArguments,
)

import evenstep
from documents import VOCABULARY
from evenstep.integrations import transformers as even

pytestmark = pytest.mark.integrations
SOURCES = documents()
N = len(SOURCES)


class Telling:
    """A model that tells which samples with labels it was trained on."""

    def __init__(self, config: Any) -> None:
        torch.manual_seed(0)
        super().__init__(config)
        self.seen = Seen()

    def forward(self, input_ids=None, labels=None, identity=None, **others):  # type: ignore
        if self.training:
            counted = (labels != -100).flatten(1).any(1) if labels.dim() > 1 else labels != -100
            self.seen.samples[-1] += identity[counted].tolist()
            self.seen.batches[-1] += 1
        others.pop("num_items_in_batch", None)
        return super().forward(input_ids=input_ids, labels=labels, **others)  # type: ignore


class Translator(Telling, T5ForConditionalGeneration):
    pass


class Classifier(Telling, BertForSequenceClassification):
    pass


class Translations(Dataset):
    """Labels of other lengths than the tokens."""

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> dict[str, Any]:
        labels = SOURCES[(index + 7) % N]["input_ids"]
        return {"input_ids": SOURCES[index]["input_ids"], "labels": labels, "identity": index}


class Classes(Dataset):
    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"input_ids": SOURCES[index]["input_ids"], "labels": index % 3, "identity": index}


def translator() -> Any:
    small = {"d_model": 8, "d_kv": 4, "d_ff": 16, "num_layers": 1, "num_heads": 2}
    return Translator(
        T5Config(
            vocab_size=VOCABULARY,
            dropout_rate=0.0,
            decoder_start_token_id=0,
            pad_token_id=0,
            **small,
        )
    )


def classifier() -> Any:
    return Classifier(
        BertConfig(
            vocab_size=VOCABULARY,
            hidden_size=8,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=16,
            max_position_embeddings=64,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            num_labels=3,
        )
    )


def both_lengths(sample: Any) -> int:
    return len(sample["input_ids"]) + len(sample["labels"])


KINDS = {
    "translator": (translator, Translations, Seq2SeqTrainer, Seq2SeqTrainingArguments),
    "classifier": (classifier, Classes, Trainer, TrainingArguments),
}


def of_one_batch(model: Any, dataset: Any, samples: list[int]) -> tuple[float, torch.Tensor]:
    """Mean loss of all labels of the samples, and its gradient."""
    model.zero_grad()
    model.eval()
    total, count = torch.zeros(()), 0
    for index in samples:
        batch = evenstep.PadCollator()([dataset[index]])
        labels = int((batch["labels"] != -100).sum())
        total = total + model(**batch).loss * labels
        count += labels
    (total / count).backward()
    return float(total / count), torch.cat([p.grad.flatten().clone() for p in model.parameters()])


def train(rank: Rank, folder: Any, name: str, across: bool) -> None:
    as_rank(rank)
    make, data, trainer_kind, arguments_kind = KINDS[name]
    for accumulate in (1, 3):
        model = make()
        trainer = trainer_kind(
            model=model,
            args=arguments(
                folder,
                kind=arguments_kind,
                gradient_accumulation_steps=accumulate,
                average_tokens_across_devices=across,
            ),
            train_dataset=data(),
            data_collator=evenstep.PadCollator(),
        )
        trainer.add_callback(Witness(model))
        options = {"length_fn": both_lengths} if name == "translator" else {}
        even.install(trainer, policy=POLICY, **options).train()
        updates = [update for update in together(gathered(model.seen)) if update]
        assert sorted(i for update in updates for i in update) == list(range(N))
        told = zip(updates, model.seen.gradients, losses(trainer), strict=True)
        for update, gradient, loss in told:
            expected_loss, expected = of_one_batch(model, data(), update)
            assert loss == pytest.approx(expected_loss, rel=1e-5, abs=5.1e-5)
            assert (gradient - expected).norm() < 1e-5 * expected.norm()


@pytest.mark.parametrize("across", [False, True])
@pytest.mark.parametrize("name", KINDS)
def test_two_ranks(tmp_path, name: str, across: bool) -> None:
    run(train, 2, tmp_path, name, across, folder=tmp_path, within=200)
