"""Labels of another length than the tokens, one for each sample, and of speech: the gradient of an
update is that of its samples one by one, though nothing says how labels are read. `tests/jobs` has
more kinds, with transformers 5."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from launched_rank import as_rank
from ranks import Rank, run
from tiny_trainer import arguments, gathered, losses
from torch.nn.utils.rnn import pad_sequence
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    T5Config,
    T5ForConditionalGeneration,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    Wav2Vec2Config,
    Wav2Vec2ForCTC,
)
from update_checks import gradient_of

import evenstep
from evenstep.errors import ConfigurationError
from evenstep.integrations import transformers as even

pytestmark = pytest.mark.integrations
COUNT, VOCABULARY, CLASSES = 36, 50, 4
PAD = 0
POLICY = evenstep.Even(max_tokens=64)

BERT = BertConfig(
    vocab_size=VOCABULARY,
    hidden_size=8,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=16,
    max_position_embeddings=64,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
    num_labels=CLASSES,
)
T5 = T5Config(
    vocab_size=VOCABULARY,
    d_model=8,
    d_kv=4,
    d_ff=16,
    num_layers=1,
    num_heads=2,
    dropout_rate=0.0,
    decoder_start_token_id=PAD,
    pad_token_id=PAD,
)
WAV2VEC = Wav2Vec2Config(
    hidden_size=8,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=16,
    vocab_size=12,
    conv_dim=(8, 8),
    conv_kernel=(4, 4),
    conv_stride=(4, 2),
    num_feat_extract_layers=2,
    num_conv_pos_embeddings=4,
    num_conv_pos_embedding_groups=2,
    feat_extract_norm="layer",
    do_stable_layer_norm=True,
    apply_spec_augment=False,
    ctc_loss_reduction="mean",
    hidden_dropout=0.0,
    attention_dropout=0.0,
    activation_dropout=0.0,
    layerdrop=0.0,
    feat_proj_dropout=0.0,
    final_dropout=0.0,
)


def tokens_of(index: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(index)
    return torch.randint(3, VOCABULARY, (3 + index * 7 % 19,), generator=generator)


def translated(index: int) -> dict[str, Any]:
    """Labels of another length than the tokens."""
    return {"input_ids": tokens_of(index), "labels": tokens_of((index + 7) % COUNT)}


def one_class(index: int) -> dict[str, Any]:
    return {"input_ids": tokens_of(index), "labels": index % CLASSES}


def spoken(index: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(index)
    sound = torch.randn(160 + 40 * (index % 7), generator=generator)
    return {"input_values": sound, "labels": 1 + tokens_of(index)[: 1 + index % 4] % 11}


def pad_sounds(rows: list[dict[str, Any]]) -> dict[str, Any]:
    sounds = [row["input_values"] for row in rows]
    return {
        "input_values": pad_sequence(sounds, True),
        "attention_mask": pad_sequence([torch.ones_like(s).long() for s in sounds], True),
        "labels": pad_sequence([row["labels"] for row in rows], True, -100),
    }


PAD_ALL = evenstep.PadCollator()


@dataclass
class Kind:
    model: Any
    config: Any
    sample: Any
    length: Any
    weight: Any = lambda row: 1
    """Of a sample's loss in the mean."""
    collate_fn: Any = PAD_ALL


KINDS = {
    "translations": Kind(
        T5ForConditionalGeneration,
        T5,
        translated,
        lambda sample: len(sample["input_ids"]) + len(sample["labels"]),
        lambda row: len(row["labels"]),
    ),
    "one class": Kind(
        BertForSequenceClassification, BERT, one_class, lambda sample: len(sample["input_ids"])
    ),
    "speech": Kind(
        Wav2Vec2ForCTC,
        WAV2VEC,
        spoken,
        lambda sample: len(sample["input_values"]) // 8,
        collate_fn=pad_sounds,
    ),
}


class Samples(torch.utils.data.Dataset):
    def __init__(self, sample: Any) -> None:
        self.sample = sample

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        return self.sample(index)


def made(kind: Kind) -> Any:
    """A model that notes the rows it was trained on."""

    class Noting(kind.model):
        def forward(self, **inputs: Any) -> Any:
            if self.training:
                self.noted.append({k: v.clone() for k, v in inputs.items() if torch.is_tensor(v)})
            return super().forward(**inputs)

    torch.manual_seed(0)
    Noting.__name__ = kind.model.__name__
    model = Noting(copy.deepcopy(kind.config))
    model.noted = []
    return model


def rows_of(batch: dict[str, torch.Tensor]) -> list[dict[str, torch.Tensor]]:
    """The samples of a batch that bear a loss, without padding."""
    batch = {name: values for name, values in batch.items() if values.ndim}
    mask = batch.pop("attention_mask").bool()
    rows = []
    for number, real in enumerate(mask):
        row = {name: values[number] for name, values in batch.items()}
        labels = row.pop("labels")
        row = {
            name: value[real] if value.shape == real.shape else value for name, value in row.items()
        }
        if (labels != -100).any():
            rows.append(row | {"labels": labels[labels != -100] if labels.ndim else labels})
    return rows


class Compared(TrainerCallback):
    """Compares the gradient of each update with that of its samples one by one."""

    def __init__(self, model: Any, kind: Kind) -> None:
        self.model, self.kind = model, kind
        self.samples: list[Any] = []
        self.apart: list[float] = []
        self.losses: list[float] = []
        """Of each update, as one batch."""

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        found = gradient_of(self.model)
        own = [row for batch in self.model.noted for row in rows_of(batch)]
        self.model.noted.clear()
        rows = [row for rank in gathered(own) for row in rank]
        self.samples += [row[name_of(row)] for row in rows]
        self.model.eval()
        self.model.zero_grad()
        weights = [self.kind.weight(row) for row in rows]
        whole = 0.0
        for row, weight in zip(rows, weights):
            alone = {name: value[None] for name, value in row.items()}
            loss = self.model(**alone).loss * weight / sum(weights)
            loss.backward()
            whole += float(loss)
        self.losses.append(whole)
        expected = gradient_of(self.model)
        self.apart.append(float((found - expected).norm() / expected.norm()))
        self.model.train()


def name_of(sample: Any) -> str:
    return "input_ids" if "input_ids" in sample else "input_values"


def train(rank: Rank, folder: Any, name: str, across: bool) -> None:
    as_rank(rank)
    kind = KINDS[name]
    model = made(kind)
    compared = Compared(model, kind)
    of_pairs = kind.model is T5ForConditionalGeneration
    trainer = (Seq2SeqTrainer if of_pairs else Trainer)(
        model=model,
        args=arguments(
            folder,
            kind=Seq2SeqTrainingArguments if of_pairs else TrainingArguments,
            gradient_accumulation_steps=2,
            average_tokens_across_devices=across,
            remove_unused_columns=False,
        ),
        train_dataset=Samples(kind.sample),
        data_collator=kind.collate_fn,
    )
    trainer.add_callback(compared)
    even.install(trainer, policy=POLICY, length_fn=kind.length).train()
    assert len(compared.apart) > 2
    assert max(compared.apart) < 1e-5, compared.apart
    assert losses(trainer) == pytest.approx(compared.losses, rel=1e-5, abs=5.1e-5)
    wanted = [kind.sample(i) for i in range(COUNT)]
    inputs = [sample[name_of(sample)].tolist() for sample in wanted]
    assert sorted(s.tolist() for s in compared.samples) == sorted(inputs)


@pytest.mark.parametrize(
    ("name", "across"),
    [("translations", False), ("translations", True), ("one class", False), ("speech", True)],
)
def test_two_ranks(tmp_path, name: str, across: bool) -> None:
    run(train, 2, tmp_path, name, across, folder=tmp_path, within=150)


def test_a_loss_that_is_a_sum_is_refused_and_the_remedy_trains(tmp_path) -> None:
    kind = KINDS["speech"]
    model = made(kind)
    model.config.ctc_loss_reduction = "sum"
    trainer = Trainer(
        model=model,
        args=arguments(tmp_path, remove_unused_columns=False),
        train_dataset=Samples(kind.sample),
        data_collator=pad_sounds,
    )
    even.install(trainer, policy=POLICY, length_fn=kind.length)
    with pytest.raises(ConfigurationError, match=r"config.ctc_loss_reduction='mean'"):
        trainer.train()
    model.config.ctc_loss_reduction = "mean"
    trainer.train()
    assert trainer.state.global_step > 2
