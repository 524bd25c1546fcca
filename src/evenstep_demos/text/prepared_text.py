"""Turns a corpus into what the ranks need: a tokenizer, documents to train on and to hold out.

The held-out documents are set aside before the tokenizer sees any text. Documents that are longer
than the limit are left out of both sets, and counted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import Dataset

from evenstep.arrays import Int64Array
from evenstep.batch import PadCollator
from evenstep.errors import ConfigurationError, needing
from evenstep_demos.text.corpus import Corpus

if TYPE_CHECKING:
    from tokenizers import Tokenizer

END = 0
"""Token that ends every document, and pads batches."""

_TOKENIZER_CHARACTERS = 3_000_000
_TOKENIZER_CHARACTERS_PER_DOCUMENT = 20_000  # so that no single document shapes the vocabulary
_CHARACTERS_PER_TOKEN = 8  # more than nearly any text has; documents of more are too long
_HELD_OUT_SHARE, _HELD_OUT = 10, 256


@dataclass(frozen=True, kw_only=True)
class Task:
    """Samples, and the model that learns them; picklable."""

    training: Dataset[Any]
    """Map-style, in random order."""
    lengths: npt.NDArray[np.int64]
    """[samples] tokens: to choose a batch size by, not to form batches by."""
    held_out: Dataset[Any]
    held_out_lengths: npt.NDArray[np.int64]
    collate: Callable[[list[Any]], Mapping[str, torch.Tensor]]
    """Samples -> the arguments of the model, ``input_ids``, ``attention_mask`` and ``labels`` among
    them."""
    model: Callable[[int], torch.nn.Module]
    """Seed -> a model before training. Called, it returns the mean loss per supervised token."""


class TokenizedDocuments(Dataset[dict[str, torch.Tensor]]):
    """A map-style data set that tokenizes when asked, as a training job does."""

    def __init__(self, texts: Sequence[str], tokenizer: str) -> None:
        self.texts = texts
        self.tokenizer = tokenizer
        self._loaded: Tokenizer | None = None

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        """``input_ids`` and ``labels``, [length] int64."""
        if self._loaded is None:
            self._loaded = load_tokenizer(self.tokenizer)
        tokens = torch.tensor([*self._loaded.encode(self.texts[index]).ids, END])
        return {"input_ids": tokens, "labels": tokens}

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_loaded": None}


def prepare(
    corpus: Corpus,
    limit: int,
    vocab_size: int,
    *,
    ranks: int,
    model: Callable[[int], torch.nn.Module],
) -> tuple[Task, int]:
    """Trains the tokenizer, measures every document and sets some aside.

    Args:
        limit: tokens of a document; longer ones are left out.
        ranks: each needs a document to train on and one to evaluate.
        model: see `Task`.

    Returns:
        What the ranks are given, and the number of documents over the limit.

    Raises:
        ConfigurationError: too few documents are within the limit.
        ImportError: the tokenizers package is not installed.
    """
    pool = len(corpus.documents) // _HELD_OUT_SHARE
    tokenizer = train_tokenizer(corpus.documents[pool:], vocab_size)
    # The beginning of a document that is far over the limit tells that it is.
    enough = _CHARACTERS_PER_TOKEN * limit
    encoded = load_tokenizer(tokenizer).encode_batch([text[:enough] for text in corpus.documents])
    lengths = np.array([len(tokens) + 1 for tokens in encoded], np.int64)
    lengths[[len(text) > enough for text in corpus.documents]] = limit + 1
    kept = np.flatnonzero(lengths <= limit)
    held_out, training = kept[kept < pool][:_HELD_OUT], kept[kept >= pool]
    if len(training) < ranks or len(held_out) < ranks:
        raise ConfigurationError(
            f"{corpus.name}: of {len(lengths):,} documents, {len(kept):,} have at most {limit:,} "
            f"tokens: {len(training):,} to train on and {len(held_out):,} to hold out, for {ranks} "
            "ranks; give more text, or raise --max-tokens"
        )

    def chosen(indices: Int64Array) -> TokenizedDocuments:
        return TokenizedDocuments([corpus.documents[i] for i in indices], tokenizer)

    task = Task(
        training=chosen(training),
        lengths=lengths[training],
        held_out=chosen(held_out),
        held_out_lengths=lengths[held_out],
        collate=PadCollator(pad_token_id=END),
        model=model,
    )
    return task, len(lengths) - len(kept)


def train_tokenizer(texts: Sequence[str], vocab_size: int) -> str:
    """Trains a byte-level BPE tokenizer, as JSON; ``END`` is its only special token."""
    tokenizers = _tokenizers()
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=["<|end|>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    chosen: list[str] = []
    characters = 0
    for text in texts:
        chosen.append(text[:_TOKENIZER_CHARACTERS_PER_DOCUMENT])
        characters += len(chosen[-1])
        if characters >= _TOKENIZER_CHARACTERS:
            break
    tokenizer.train_from_iterator(chosen, trainer)
    return str(tokenizer.to_str())


def load_tokenizer(tokenizer: str) -> Tokenizer:
    """Loads the tokenizer that `train_tokenizer` returned."""
    loaded: Tokenizer = _tokenizers().Tokenizer.from_str(tokenizer)
    # Not part of the JSON. Text that spells the special token must not end a document early.
    loaded.encode_special_tokens = True
    return loaded


def _tokenizers() -> ModuleType:
    with needing("the demo needs tokenizers", "demo"):
        import tokenizers
    return tokenizers
