"""What a rank is told, and the work on a sample, the same for every peer.

Imports nothing of evenstep: it runs in the environment of each peer.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from tokenizers import Tokenizer

PIXELS = 224
MOST_TOKENS = 2048
"""Of a sample."""
SOURCES = 30
Sample = dict[str, Any]
Batch = dict[str, Any]


@dataclass(frozen=True)
class Work:
    """What the loader of one rank is to do."""

    workload: str
    """padded, images or mixture"""
    folder: str
    """The data, in the format that the adapter's `convert` wrote."""
    samples: int
    """Of all ranks together: those of an epoch; of a mixture, as many as are drawn."""
    rank: int
    ranks: int
    workers: int
    """Processes (threads, if the peer has no processes) that prepare samples for this rank."""
    batch_size: int
    """For a peer that forms batches of so many samples."""
    max_tokens: int
    """Padded tokens of a batch for a peer that counts them."""
    seed: int = 0

    def weights(self) -> list[float]:
        """[SOURCES] of the mixture; they add up to 1."""
        raw = [1.0 + number % 5 for number in range(SOURCES)]
        return [weight / sum(raw) for weight in raw]


# The raw data, which a `convert` reads.


def texts(folder: str | Path, source: int | None = None) -> Iterator[tuple[int, str]]:
    """Id and text of every document; of a mixture, those of one source."""
    name = "text.jsonl" if source is None else f"{source:02}.jsonl"
    with open(Path(folder) / name, encoding="utf-8") as lines:
        for line in lines:
            row = json.loads(line)
            yield row["id"], row["text"]


def jpegs(folder: str | Path) -> list[Path]:
    """The files of pictures; the id of one is `int(path.stem)`."""
    return sorted(Path(folder).glob("*.jpg"))


# The work.


@cache
def _tokenizer() -> Tokenizer:
    return Tokenizer.from_file(os.environ["PEERS_TOKENIZER"])


def tokenize(number: int, text: str) -> Sample:
    """id, and input_ids: [tokens] int64 NumPy array"""
    ids = _tokenizer().encode(text).ids
    return {"id": number, "input_ids": np.array(ids, np.int64)}


def decode(number: int, jpeg: bytes) -> Sample:
    """id, and pixels: [3, PIXELS, PIXELS] uint8 NumPy array"""
    with Image.open(io.BytesIO(jpeg)) as picture:
        small = picture.convert("RGB").resize((PIXELS, PIXELS), Image.Resampling.BILINEAR)
    return {"id": number, "pixels": np.ascontiguousarray(np.asarray(small).transpose(2, 0, 1))}


def pad(samples: Sequence[Sample]) -> Batch:
    """id, lengths: lists; input_ids: [samples, longest] int64 tensor"""
    rows = [torch.as_tensor(sample["input_ids"]) for sample in samples]
    return {
        "id": [int(sample["id"]) for sample in samples],
        "lengths": [len(row) for row in rows],
        "input_ids": torch.nn.utils.rnn.pad_sequence(rows, batch_first=True),
    }


def stack(samples: Sequence[Sample]) -> Batch:
    """id: list; pixels: [samples, 3, PIXELS, PIXELS] uint8 tensor"""
    pixels = torch.from_numpy(np.stack([sample["pixels"] for sample in samples]))
    return {"id": [int(sample["id"]) for sample in samples], "pixels": pixels}
