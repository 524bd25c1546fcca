"""`KINDS`: the models that jobs train, tiny, in float64 and with random weights, and what their
data holds before it takes any form.

Weights are large, so that a token that is seen, masked or counted wrongly changes gradients by far
more than rounding does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
import torch
import transformers as hf
from torch import nn
from torch.nn.functional import cross_entropy

from families import FAMILIES
from families.tiny import seeded

PAD, MASK_TOKEN, FIRST, VOCABULARY = 0, 3, 4, 60
"""Padding; what masked language models see; the first id of text; and one more than the last."""
CLASSES, SCORES = 3, 4
Fields = dict[str, torch.Tensor]


@dataclass(frozen=True, eq=False)
class Example:
    """One sample as it is meant."""

    fields: Fields
    """What the model takes of it, without padding and without a batch's dimension."""
    weight: int
    """Supervised tokens; 1 where the loss is a mean over samples."""
    row: Any = None
    """The raw row that it is made of, where there is one."""

    @property
    def tokens(self) -> torch.Tensor:
        """What is padded: token ids, or numbers."""
        return next(iter(self.fields.values()))


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of model."""

    model: Callable[[], nn.Module]
    example: Callable[[np.random.Generator, str, int], Example]
    """(numbers, style of labels, number of the sample) -> the sample."""
    labels: tuple[str, ...]
    """The styles of labels that its data may have."""
    labeled: str = "token"
    """What has a label: each "token", each "sample", or "own" for labels that are a text of their
    own."""
    reads: str = "every"
    """Which labels the loss reads, as ``labels=`` of the loader says it."""
    mean: str = "token"
    """What the loss is a mean over, as ``loss_scaling=`` of the loader says it."""
    relative: bool = False
    """Whether padding on the left changes nothing, as positions are relative."""
    causal: bool = False
    padded: bool = True
    """Whether what samples are told apart by has different lengths."""
    unit: int = 1
    """Samples are this many times as long as texts are."""
    media: tuple[str, ...] = ()
    """Fields that are joined over the batch."""
    collate_rows: Callable[[list[Any]], Any] | None = None
    """What a user writes who has raw rows."""
    loss: Callable[[nn.Module, Mapping[str, Any]], torch.Tensor] = lambda model, batch: (
        model(**batch).loss
    )
    """The mean loss of a batch, as the user's loop computes it."""

    def of_one(self, example: Example) -> dict[str, Any]:
        """The example as a batch of one."""
        return {n: v if n in self.media else v[None] for n, v in example.fields.items()}


def length_of_text(random: np.random.Generator) -> int:
    return int(min(random.geometric(0.12), 30))


def text(random: np.random.Generator) -> torch.Tensor:
    return torch.from_numpy(random.integers(FIRST, VOCABULARY, length_of_text(random)))


def floats(random: np.random.Generator, size: int) -> torch.Tensor:
    """Numbers that 32 bits hold, as lists of floats become tensors of 32 bits."""
    return torch.from_numpy(random.normal(size=size)).float().double()


# Causal language models


def causal_text(random: np.random.Generator, style: str, number: int) -> Example:
    tokens = text(random)
    labels = tokens.clone()
    masked = torch.from_numpy(random.random(len(tokens)) < 0.4)
    if style == "prompts":
        # None, a part, or all of the sample.
        labels[: int(random.integers(0, len(tokens) + 1)) if number % 4 else 0] = -100
    elif style == "holes":
        labels[masked] = -100
    elif style == "shifted":
        labels = torch.cat([tokens[1:], torch.tensor([-100])])
        labels[masked] = -100
        return Example({"input_ids": tokens, "labels": labels}, int((labels != -100).sum()))
    weight = int((labels[1:] != -100).sum())
    return Example({"input_ids": tokens, "labels": labels}, weight)


def causal_loss(model: nn.Module, batch: Mapping[str, Any]) -> torch.Tensor:
    """Without labels, every token is predicted but the first."""
    batch = dict(batch)
    if "labels" not in batch:
        tokens = batch["input_ids"]
        real = batch.get("attention_mask", torch.ones_like(tokens))
        batch["labels"] = tokens.masked_fill((real == 0) | (real.cumsum(1) == 1), -100)
    return model(**batch).loss


def shifted_loss(model: nn.Module, batch: Mapping[str, Any]) -> torch.Tensor:
    batch = dict(batch)
    labels = batch.pop("labels")
    return cross_entropy(model(**batch).logits.flatten(0, 1), labels.flatten())


SMALL = {"vocab_size": VOCABULARY, "pad_token_id": PAD, "bos_token_id": 1, "eos_token_id": 2}
DECODER = {**SMALL, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1}
HEADS = {"num_attention_heads": 2, "num_key_value_heads": 1}
ENCODER = {
    **SMALL,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "max_position_embeddings": 160,
}


def of(kind: Any, config: Any, **settings: Any) -> Callable[[], nn.Module]:
    return partial(_of, kind, config, settings)


def _of(kind: Any, config: Any, settings: dict[str, Any]) -> nn.Module:
    return seeded(lambda: kind(config(**settings)), 0).double()


def llama() -> Kind:
    return Kind(
        model=of(hf.LlamaForCausalLM, hf.LlamaConfig, **DECODER, **HEADS),
        example=causal_text,
        labels=("none", "copies", "prompts", "holes", "shifted"),
        reads="causal",
        relative=True,
        causal=True,
        loss=causal_loss,
    )


def gpt2() -> Kind:
    """Absolute positions."""
    still = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    sizes = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 160}
    return Kind(
        model=of(hf.GPT2LMHeadModel, hf.GPT2Config, **SMALL, **still, **sizes),
        example=causal_text,
        labels=("none", "copies", "prompts"),
        reads="causal",
        causal=True,
        loss=causal_loss,
    )


# Encoder-decoders


def translation(random: np.random.Generator, style: str, number: int) -> Example:
    """With the style "corrections", most targets are the source itself."""
    source = text(random)
    target = text(random)
    if style == "corrections" and number % 4:
        target = source.clone()
    elif style == "equal lengths":
        target = torch.from_numpy(random.integers(FIRST, VOCABULARY, len(source)))
    return Example({"input_ids": source, "labels": target}, len(target))


def t5() -> Kind:
    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 1, "num_heads": 2}
    return Kind(
        model=of(
            hf.T5ForConditionalGeneration,
            hf.T5Config,
            **SMALL,
            **sizes,
            dropout_rate=0.0,
            decoder_start_token_id=PAD,
        ),
        example=translation,
        labels=("own", "corrections", "equal lengths"),
        labeled="own",
        unit=2,
    )


# Encoders


def tagged(random: np.random.Generator, style: str, number: int) -> Example:
    """With the style "alike", tags have the ids of the tokens in some samples, by chance."""
    tokens = text(random)
    labels = torch.from_numpy(random.integers(0, CLASSES, len(tokens)))
    if style == "words":  # only the first piece of each word, and no special token
        labels[torch.from_numpy(random.random(len(tokens)) < 0.3)] = -100
        labels[0] = -100
    elif style == "holes":
        labels[torch.from_numpy(random.random(len(tokens)) < 0.3)] = -100
    elif style == "alike" and number % 2:
        tokens = labels = torch.from_numpy(random.integers(FIRST, FIRST + CLASSES, len(tokens)))
    if style == "alike":
        labels = labels if number % 2 else labels + FIRST
    return Example({"input_ids": tokens, "labels": labels}, int((labels != -100).sum()))


def blanked(random: np.random.Generator, style: str, number: int) -> Example:
    """Some tokens to predict; a few of them are shown as they are, as BERT's recipe has it."""
    tokens = text(random)
    chosen = torch.from_numpy(random.random(len(tokens)) < 0.4)
    chosen[1:][-1:] = False  # as what ends a text
    labels = tokens.masked_fill(~chosen, -100)
    shown = torch.from_numpy(random.random(len(tokens)) < 0.3) | (number % 3 == 0)
    tokens = tokens.masked_fill(chosen & ~shown, MASK_TOKEN)
    return Example({"input_ids": tokens, "labels": labels}, int(chosen.sum()))


def classified(random: np.random.Generator, style: str, number: int) -> Example:
    label = torch.tensor(int(random.integers(CLASSES)))
    if style == "numbers":
        label = floats(random, 1)[0]
    elif style == "several":
        label = torch.from_numpy(random.integers(0, 2, SCORES)).double()
    return Example({"input_ids": text(random), "labels": label}, 1)


def encoder(kind: Any, config: Any, example: Any, labels: tuple[str, ...], **more: Any) -> Kind:
    settings = {**ENCODER, **more.pop("settings", {})}
    return Kind(model=of(kind, config, **settings), example=example, labels=labels, **more)


# Images, sound and numbers


@cache
def rows_of_family(name: str, number: int) -> tuple[Any, dict[str, Any]]:
    family = FAMILIES[name]
    row = family.row(number)
    return row, dict(family.collate([row]))


def with_images(name: str) -> Kind:
    family = FAMILIES[name]

    def example(random: np.random.Generator, style: str, number: int) -> Example:
        row, batch = rows_of_family(name, int(random.integers(30)) + 30 * number)
        media = MEDIA[name]
        fields = {n: v if n in media else v[0] for n, v in batch.items()}
        del fields["attention_mask"]
        weight = int((fields["labels"][1:] != -100).sum())
        return Example(fields, weight, row)

    return Kind(
        model=lambda: family.model(0).double(),
        example=example,
        labels=("answers",),
        reads="causal",
        relative=True,
        causal=True,
        unit=4,
        media=MEDIA[name],
        collate_rows=family.collate,
    )


def whisper() -> Kind:
    """An encoder-decoder of recordings that are all as long."""
    family = FAMILIES["Whisper"]

    def example(random: np.random.Generator, style: str, number: int) -> Example:
        row, batch = rows_of_family("Whisper", int(random.integers(30)) + 30 * number)
        fields = {name: batch[name][0] for name in ("input_features", "labels")}
        return Example(fields, len(fields["labels"]), row)

    return Kind(
        model=lambda: family.model(0).double(),
        example=example,
        labels=("transcripts",),
        labeled="own",
        padded=False,
        unit=2,
        collate_rows=family.collate,
    )


MEDIA = {
    "Qwen2-VL": ("pixel_values", "image_grid_thw"),
    "LLaVA-NeXT": ("pixel_values", "image_sizes"),
}


def pair(random: np.random.Generator, style: str, number: int) -> Example:
    """Numbers, and a class: as classifiers of pictures and tables have them."""
    label = torch.tensor(int(random.integers(CLASSES)))
    return Example({"x": floats(random, 5), "y": label}, 1)


def perceptron() -> Kind:
    def model() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, CLASSES)).double()

    return Kind(
        model=model,
        example=pair,
        labels=("classes",),
        mean="sample",
        labeled="sample",
        padded=False,
        loss=lambda model, batch: cross_entropy(model(batch["x"]), batch["y"]),
    )


KINDS: dict[str, Kind] = {
    "llama": llama(),
    "gpt2": gpt2(),
    "t5": t5(),
    "bert tags": encoder(
        hf.BertForTokenClassification,
        hf.BertConfig,
        tagged,
        ("every", "words", "holes", "alike"),
        settings={"num_labels": FIRST + CLASSES},
    ),
    "roberta blanks": encoder(
        hf.RobertaForMaskedLM, hf.RobertaConfig, blanked, ("masked",), relative=True
    ),
    "bert classes": encoder(
        hf.BertForSequenceClassification,
        hf.BertConfig,
        classified,
        ("classes",),
        settings={"num_labels": CLASSES},
        mean="sample",
        labeled="sample",
    ),
    "llama classes": Kind(
        model=of(
            hf.LlamaForSequenceClassification,
            hf.LlamaConfig,
            **DECODER,
            **HEADS,
            num_labels=CLASSES,
        ),
        example=classified,
        labels=("classes",),
        mean="sample",
        labeled="sample",
        relative=True,
        causal=True,
    ),
    "bert numbers": encoder(
        hf.BertForSequenceClassification,
        hf.BertConfig,
        classified,
        ("numbers",),
        settings={"num_labels": 1},
        mean="sample",
        labeled="sample",
    ),
    "bert several": encoder(
        hf.BertForSequenceClassification,
        hf.BertConfig,
        classified,
        ("several",),
        settings={"num_labels": SCORES, "problem_type": "multi_label_classification"},
        mean="sample",
        labeled="sample",
    ),
    "whisper": whisper(),
    "Qwen2-VL": with_images("Qwen2-VL"),
    "LLaVA-NeXT": with_images("LLaVA-NeXT"),
    "perceptron": perceptron(),
}
