"""A text column as tokens: what the learning benchmark trains and evaluates on.

Samples longer than the limit are left out: cut, they would all have one length, and policies that
look at lengths would have an easy time. The held-out samples are the same for all seeds, and the
tokenizer never sees them; the training samples are drawn for each seed.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from benchmarks.lib.corpus import Tokens
from evenstep.arrays import Int64Array
from evenstep.tools.simulate.lengths import PARQUET, existing_file
from evenstep_demos.text.corpus import read_parquet
from evenstep_demos.text.prepared_text import load_tokenizer, train_tokenizer

_SHORTEST = 8  # tokens; shorter texts are hardly worth a forward pass


@dataclass(frozen=True, kw_only=True)
class TokenizedText:
    """Tokens of a corpus in random order: first the held-out samples, then all others."""

    name: str
    tokens: Tokens
    held_out: int
    vocab_size: int

    @cached_property
    def digest(self) -> str:
        found = hashlib.sha256(self.tokens.flat.tobytes())
        found.update(self.tokens.offsets.tobytes())
        found.update(f"{self.held_out} {self.vocab_size}".encode())
        return found.hexdigest()

    def draw(self, samples: int, seed: int) -> Int64Array:
        """[samples] indices of the training samples of a seed.

        Raises:
            SystemExit: the corpus has fewer.
        """
        available = len(self.tokens) - self.held_out
        if samples > available:
            sys.exit(
                f"{self.name} has {available:,} samples to train on, and --samples asks for "
                f"{samples:,}: give more text or fewer samples"
            )
        drawn = np.random.default_rng(seed).choice(available, samples, replace=False)
        return self.held_out + drawn.astype(np.int64)


def read_text(
    spec: str,
    *,
    tokenizer: str | None,
    vocab_size: int,
    max_length: int,
    held_out: int,
    cache: Path,
) -> TokenizedText:
    """Reads and tokenizes ``FILE.parquet:COLUMN``, or takes it from the cache.

    Args:
        tokenizer: a folder with one, or a name on the Hugging Face hub. None trains a byte-level
            BPE of `vocab_size` entries on the text.
        max_length: tokens over which samples are left out.
        held_out: samples kept for evaluation.
        cache: the folder to keep tokens in.

    Raises:
        ConfigurationError: the file or column cannot be read.
        ImportError: pyarrow, tokenizers or transformers is needed and not installed.
    """
    found = PARQUET.fullmatch(spec)
    if found is None:
        sys.exit(f"--data {spec}: give FILE.parquet:COLUMN, a column of text")
    path, column = existing_file(found["path"]), found["column"] or "text"
    asked = [str(path.resolve()), path.stat().st_mtime_ns, column, tokenizer, vocab_size]
    key = hashlib.sha256(
        json.dumps([*asked, "left out", max_length, held_out]).encode()
    ).hexdigest()[:12]
    stored = cache / f"{path.stem}-{key}.npz"
    if stored.is_file():
        with np.load(stored) as arrays:
            return TokenizedText(
                name=path.stem,
                tokens=Tokens(arrays["flat"], arrays["offsets"]),
                held_out=held_out,
                vocab_size=int(arrays["vocab_size"]),
            )
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    texts = read_parquet(path, column, seed=0).documents
    # Similar rows of a file lie together, and the first of them are to be held out.
    texts = [texts[i] for i in np.random.default_rng(0).permutation(len(texts))]
    encode, size = _encoder(tokenizer, texts[2 * held_out :], vocab_size)
    samples: list[list[int]] = []
    for text in texts:
        ids = encode(text)
        if _SHORTEST <= len(ids) <= max_length:
            samples.append(ids)
    if len(samples) <= 2 * held_out:
        sys.exit(f"{path}: {len(samples):,} samples are too few to hold out {held_out:,}")
    result = TokenizedText(
        name=path.stem,
        tokens=Tokens.of(samples),
        held_out=held_out,
        vocab_size=size,
    )
    cache.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(
        stored,
        flat=result.tokens.flat,
        offsets=result.tokens.offsets,
        vocab_size=result.vocab_size,
    )
    return result


def _encoder(
    name: str | None, texts: list[str], vocab_size: int
) -> tuple[Callable[[str], list[int]], int]:
    """The function that turns text into ids, and the size of the vocabulary."""
    if name is None:
        trained = load_tokenizer(train_tokenizer(texts, vocab_size))
        return lambda text: trained.encode(text).ids, vocab_size
    from transformers import AutoTokenizer

    found = AutoTokenizer.from_pretrained(name)
    return found.encode, len(found)
