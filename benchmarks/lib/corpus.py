"""Real text: what the training benchmark trains and evaluates on.

Documents longer than the limit are cut there, as training scripts do. A training sample is
tokenized when it is asked for, in whatever process a method has for it, so a method that needs
lengths in advance tokenizes twice.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import Dataset

from evenstep_demos.text.corpus import read_parquet, read_standard_library
from evenstep_demos.text.prepared_text import END, describe_lengths, load_tokenizer, train_tokenizer

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_DEFINITION = re.compile(r"\n(?=(?:def |class |async def |@))")
_SHORTEST = 8  # tokens; blank lines between definitions and the like are not documents


@dataclass(frozen=True)
class Tokens(Dataset[dict[str, torch.Tensor]]):
    """Map-style dataset over one flat array, cheap to send to another process."""

    flat: npt.NDArray[np.int32]
    offsets: npt.NDArray[np.int64]
    """[samples + 1]"""

    @classmethod
    def of(cls, samples: list[list[int]]) -> Tokens:
        sizes = [0, *map(len, samples)]
        return cls(np.concatenate([np.array(s, np.int32) for s in samples]), np.cumsum(sizes))

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        return np.diff(self.offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = self.flat[self.offsets[index] : self.offsets[index + 1]].astype(np.int64)
        return {"input_ids": torch.from_numpy(tokens), "labels": torch.from_numpy(tokens.copy())}


@dataclass(frozen=True, kw_only=True)
class Documents(Dataset[dict[str, torch.Tensor]]):
    """Map-style dataset of texts, tokenized one by one when they are asked for."""

    texts: tuple[str, ...]
    tokenizer: str
    """As JSON."""
    max_length: int
    lengths: npt.NDArray[np.int64]
    """[samples] tokens of each: to choose settings by, not to form batches by."""

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = torch.tensor(
            encode(_encoder(self.tokenizer), self.texts[index])[: self.max_length]
        )
        return {"input_ids": tokens, "labels": tokens.clone()}


@lru_cache(maxsize=1)
def _encoder(tokenizer: str) -> Tokenizer:
    return load_tokenizer(tokenizer)


def encode(encoder: Tokenizer, text: str) -> list[int]:
    return [*encoder.encode(text).ids, END]


@dataclass(frozen=True)
class Text:
    """Training and held-out samples, in random order, and where they are from."""

    name: str
    training: Documents
    held_out: Tokens
    cut: int
    """Number of training samples that were longer than the limit."""

    def describe(self) -> str:
        facts = describe_lengths(self.training.lengths)
        return (
            f"{self.name}: {len(self.training):,} samples of {facts['mean']:,.0f} tokens (median "
            f"{facts['median']:,.0f}, longest {facts['max']:,.0f}, coefficient of variation "
            f"{facts['cv']:.2f}), {self.cut:,} of them cut; {len(self.held_out):,} held out"
        )


def load(
    data: Path | None, *, samples: int, held_out: int, max_length: int, vocab_size: int, seed: int
) -> Text:
    """The first `samples` documents in random order, and as many others as are held out.

    Args:
        data: a Parquet file with a column `text`. None takes the functions and classes of the
            standard library's source files.
    """
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    if data is None:
        corpus = read_standard_library(seed)
        name = "functions and classes of the standard library"
        texts = [part for file in corpus.documents for part in _DEFINITION.split(file)]
    else:
        # Similar rows of a file lie together, so the first rows do not represent the file.
        corpus = read_parquet(data, "text", seed)
        name, texts = data.name, corpus.documents
    texts = [texts[i] for i in np.random.default_rng(seed).permutation(len(texts))]
    # The tokenizer never sees the held-out documents, which come first.
    tokenizer = train_tokenizer(texts[2 * held_out :], vocab_size)
    encoder = load_tokenizer(tokenizer)
    found: list[str] = []
    encoded: list[list[int]] = []
    for text in texts:
        tokens = encode(encoder, text)
        if len(tokens) >= _SHORTEST:
            found.append(text)
            encoded.append(tokens)
        if len(found) == held_out + samples:
            break
    lengths = np.array([len(tokens) for tokens in encoded[held_out:]], np.int64)
    return Text(
        name=name,
        training=Documents(
            texts=tuple(found[held_out:]),
            tokenizer=tokenizer,
            max_length=max_length,
            lengths=np.minimum(lengths, max_length),
        ),
        held_out=Tokens.of([tokens[:max_length] for tokens in encoded[:held_out]]),
        cut=int((lengths > max_length).sum()),
    )
