"""The mixture that `throughput.py` reads, and what a sample of it costs: needs no torch, as loaders
do not."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import evenstep.service as es
from evenstep.strategy import DGraph, LoadingPlan
from evenstep.strategy.mesh import ClientPlaceTree

_FILES = 8  # of each source
_SOURCE_BYTES = 24 << 20
"""Of a source of large samples, which has fewer rows."""


@dataclass(frozen=True)
class Setting:
    """What a step is made of."""

    samples: int
    transform_ms: float
    """Processor time of a sample's transform."""
    sample_kb: float
    """KB of a stored sample on average; lengths spread around it."""
    steps: int
    """Measured, after some more."""
    loaders: int = 2
    """Processes that read: torch's workers finish their batches at about the same time, so rounds
    of that many steps are measured."""

    @property
    def most_tokens(self) -> int:
        """Of a sample."""
        return int(self.sample_kb * 1000 / 4 * 4)

    @property
    def warm_up(self) -> int:
        """Steps in which each reader fills what it prepares ahead."""
        return 4 * self.loaders

    @property
    def waits(self) -> int:
        """Steps of which the exposed wait is measured."""
        return min(20, self.steps)

    @property
    def text(self) -> str:
        return (
            f"{self.samples} samples a step of {self.sample_kb:g} KB and {self.transform_ms:g} ms"
        )


SETTINGS = {
    "small": Setting(samples=64, transform_ms=0.1, sample_kb=2.0, steps=200),
    "realistic": Setting(samples=192, transform_ms=2.0, sample_kb=2.0, steps=20),
}


def setting_of(transform_ms: float, sample_kb: float, loaders: int) -> Setting:
    """Steps of 64 samples, of 8 if they are large; as many as take a few seconds, in rounds."""
    samples = 64 if sample_kb < 100 else 8
    guess = samples * (0.1 + transform_ms + sample_kb / 500) / loaders  # milliseconds
    rounds = int(np.clip(4000 / guess, 6 * loaders, 200)) // loaders
    return Setting(samples, transform_ms, sample_kb, rounds * loaders, loaders)


def prepared(row: Mapping[str, Any], *, milliseconds: float) -> dict[str, Any]:
    """A sample of the stored tokens, after this much work in the processor."""
    blob = row["tokens"]
    if milliseconds:
        end = time.thread_time() + milliseconds / 1000
        while time.thread_time() < end:
            hashlib.sha256(blob[:4096]).digest()
    return {"input_ids": np.frombuffer(blob, np.int32).astype(np.int64)}


def strategy(graph: DGraph, mesh: ClientPlaceTree, step: int) -> LoadingPlan:
    return graph.mix().distribute("DP").balance("greedy").plan()


def sources_of(folder: Path, count: int, setting: Setting) -> list[es.Source]:
    transform = partial(prepared, milliseconds=setting.transform_ms)
    return [
        es.Source(f"source-{k}", f"{folder}/{k}/*.parquet", transform=transform, weight=1.0 + k % 3)
        for k in range(count)
    ]


def write(folder: Path, count: int, setting: Setting, seed: int) -> None:
    """Parquet files of token ids as bytes."""
    import pyarrow
    import pyarrow.parquet

    rng = np.random.default_rng(seed)
    rows = int(np.clip(_SOURCE_BYTES / (1000 * setting.sample_kb), 24, 1500)) // _FILES
    mean = setting.sample_kb * 1000 / 4
    for k in range(count):
        (folder / str(k)).mkdir(parents=True)
        for file in range(_FILES):
            lengths = mean * rng.lognormal(-0.2, 0.6, rows)
            lengths = np.clip(lengths, 16, setting.most_tokens).astype(int)
            own = [rng.integers(0, 50_000, n, np.int32).tobytes() for n in lengths]
            table = pyarrow.table({"tokens": pyarrow.array(own, pyarrow.binary())})
            pyarrow.parquet.write_table(table, folder / str(k) / f"{file}.parquet")
