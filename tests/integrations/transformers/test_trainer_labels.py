"""Models that read labels in all ways: the gradient of each update is that of its samples one by
one, though nothing says how the labels are read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.distributed as dist
from launched_rank import as_rank
from ranks import Rank, run
from tiny_trainer import arguments, losses
from torch.nn.utils.rnn import pad_sequence
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertForTokenClassification,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    T5Config,
    T5ForConditionalGeneration,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    Wav2Vec2ForCTC,
)

import evenstep
from evenstep.errors import ConfigurationError
from evenstep.integrations import transformers as even

pytestmark = pytest.mark.integrations
COUNT, VOCABULARY, CLASSES = 36, 50, 4
PAD, MASK = 0, 1

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
).to_dict()
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
WAV2VEC = {
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "vocab_size": 12,
    "conv_dim": (8, 8),
    "conv_kernel": (4, 4),
    "conv_stride": (4, 2),
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 4,
    "num_conv_pos_embedding_groups": 2,
    "feat_extract_norm": "layer",
    "do_stable_layer_norm": True,
    "apply_spec_augment": False,
    **dict.fromkeys(
        [
            *("hidden_dropout", "attention_dropout", "activation_dropout", "layerdrop"),
            *("feat_proj_dropout", "final_dropout"),
        ],
        0.0,
    ),
}


def tokens_of(index: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(index)
    return torch.randint(3, VOCABULARY, (3 + index * 7 % 19,), generator=generator)


def copied(index: int) -> dict[str, Any]:
    """In most pairs the target is the source."""
    tokens = tokens_of(index)
    labels = tokens.clone()
    labels[0] = 3 + (labels[0] + (index % 3 == 0)) % (VOCABULARY - 3)
    return {"input_ids": tokens, "labels": tokens if index % 3 else labels}


def translated(index: int) -> dict[str, Any]:
    """Labels of another length than the tokens."""
    return {"input_ids": tokens_of(index), "labels": tokens_of((index + 7) % COUNT)}


def tagged(index: int) -> dict[str, Any]:
    tokens = tokens_of(index)
    labels = tokens % CLASSES
    labels[index % 3 :: 5] = -100
    return {"input_ids": tokens, "labels": labels}


def multi_hot(index: int) -> dict[str, Any]:
    return {
        "input_ids": tokens_of(index),
        "labels": [float(index >> k & 1) for k in range(CLASSES)],
    }


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


def all_labels(row: dict[str, Any]) -> int:
    return int((row["labels"] != -100).sum())


@dataclass
class Kind:
    model: Any
    config: Any
    sample: Any
    weight: Any
    """Of a sample's loss in the mean."""
    collate: Any = None
    options: Any = None


KINDS = {
    "encoder-decoder": Kind(T5ForConditionalGeneration, T5, copied, all_labels),
    "translations": Kind(
        T5ForConditionalGeneration,
        T5,
        translated,
        all_labels,
        options={"length_fn": lambda sample: len(sample["input_ids"]) + len(sample["labels"])},
    ),
    "token classes": Kind(BertForTokenClassification, BERT, tagged, all_labels),
    "one class": Kind(BertForSequenceClassification, BERT, one_class, lambda row: 1),
    "several classes": Kind(
        BertForSequenceClassification,
        {**BERT, "problem_type": "multi_label_classification"},
        multi_hot,
        lambda row: 1,
    ),
    "speech": Kind(
        Wav2Vec2ForCTC,
        {**WAV2VEC, "ctc_loss_reduction": "mean"},
        spoken,
        lambda row: 1,
        lambda: pad_sounds,
        {"length_fn": lambda sample: len(sample["input_values"]) // 8},
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
                self.noted.append({k: v.clone() for k, v in inputs.items() if v is not None})
            return super().forward(**inputs)

    torch.manual_seed(0)
    Noting.__name__ = kind.model.__name__
    config = kind.config
    if isinstance(config, dict):
        config = kind.model.config_class(**config)
    model = Noting(config)
    model.noted = []
    return model


def rows_of(batch: dict[str, torch.Tensor], tagged: bool) -> list[dict[str, torch.Tensor]]:
    """The samples of a batch, without padding.

    Args:
        tagged: whether labels are those of tokens, of which some are masked.
    """
    batch = {k: v for k, v in batch.items() if torch.is_tensor(v) and v.ndim}
    mask = batch.pop("attention_mask")
    rows = []
    for number, real in enumerate(mask.bool()):
        row = {}
        for name, values in batch.items():
            value = values[number]
            if name == "labels" and not tagged and value.ndim and not value.is_floating_point():
                value = value[value != -100]
            elif value.shape == real.shape:
                value = value[real]
            row[name] = value
        rows.append(row)
    return rows


def gradient_of(model: Any) -> torch.Tensor:
    zeros = (torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters())
    return torch.cat([gradient.flatten().clone() for gradient in zeros])


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
        tags = self.kind.sample is tagged
        own = [row for batch in self.model.noted for row in rows_of(batch, tags)]
        self.model.noted.clear()
        everyone = [own]
        if dist.is_initialized():
            everyone = [None] * dist.get_world_size()  # type: ignore[list-item]
            dist.all_gather_object(everyone, own)
        rows = [row for rank in everyone for row in rank if self.bears_loss(row)]
        self.samples += [row.get("input_ids", row.get("input_values")) for row in rows]
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

    def bears_loss(self, row: Any) -> bool:
        labels = row.get("labels", torch.zeros(1))
        return bool((labels != -100).any()) and labels.numel() > 0


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
        data_collator=evenstep.PadCollator() if kind.collate is None else kind.collate(),
    )
    trainer.add_callback(compared)
    even.install(trainer, policy=evenstep.Even(max_tokens=64), **(kind.options or {})).train()
    assert len(compared.apart) > 2
    assert max(compared.apart) < 1e-5, compared.apart
    assert losses(trainer) == pytest.approx(compared.losses, rel=1e-5, abs=5.1e-5)
    wanted = [kind.sample(i) for i in range(COUNT)]
    inputs = [s.get("input_ids", s.get("input_values")).tolist() for s in wanted]
    assert sorted(s.tolist() for s in compared.samples) == sorted(inputs)


@pytest.mark.parametrize("across", [False, True])
@pytest.mark.parametrize("name", KINDS)
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
    even.install(trainer, policy=evenstep.Even(max_tokens=64), **kind.options)
    with pytest.raises(ConfigurationError, match=r"config.ctc_loss_reduction='mean'"):
        trainer.train()
    model.config.ctc_loss_reduction = "mean"
    trainer.train()
    assert trainer.state.global_step > 2
