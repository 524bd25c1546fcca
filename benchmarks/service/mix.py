"""The mixture that `throughput.py` reads: needs no torch, as loaders do not."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import evenstep.service as es
from evenstep.strategy import DGraph, LoadingPlan
from evenstep.strategy.mesh import ClientPlaceTree

__all__ = ["SETTINGS", "Setting", "paths_of", "sources_of", "strategy", "weights_of", "write"]

ROWS = 1500  # of each source


@dataclass(frozen=True)
class Setting:
    """What a step is made of."""

    samples: int
    rounds: int
    """Rounds of hashing that stand for what making a sample takes."""
    train_ms: float
    steps: int


SETTINGS = {
    "small": Setting(samples=64, rounds=40, train_ms=50.0, steps=200),
    "realistic": Setting(samples=192, rounds=600, train_ms=400.0, steps=20),
}


def prepared(row: Mapping[str, Any], *, rounds: int) -> dict[str, Any]:
    blob = row["tokens"]
    for _ in range(rounds):
        hashlib.sha256(blob).digest()
    return {"input_ids": np.frombuffer(blob, np.int32).astype(np.int64)}


def strategy(graph: DGraph, mesh: ClientPlaceTree, step: int) -> LoadingPlan:
    return graph.mix().distribute("DP").balance("greedy").plan()


def weights_of(count: int) -> list[float]:
    return [1.0 + k % 3 for k in range(count)]


def paths_of(folder: Path, count: int) -> list[Path]:
    return [folder / f"{k}.parquet" for k in range(count)]


def sources_of(folder: Path, count: int, rounds: int) -> list[es.Source]:
    transform = partial(prepared, rounds=rounds)
    return [
        es.Source(f"source-{k}", str(path), transform=transform, weight=weight)
        for k, (path, weight) in enumerate(zip(paths_of(folder, count), weights_of(count)))
    ]


def write(folder: Path, count: int, seed: int) -> None:
    """Token ids as bytes, some hundreds to a row."""
    import pyarrow
    import pyarrow.parquet

    rng = np.random.default_rng(seed)
    for path in paths_of(folder, count):
        lengths = np.clip(rng.lognormal(6.0, 0.7, ROWS).astype(int), 16, 4096)
        blobs = [rng.integers(0, 50_000, n, np.int32).tobytes() for n in lengths]
        table = pyarrow.table({"tokens": pyarrow.array(blobs, pyarrow.binary())})
        pyarrow.parquet.write_table(table, path, row_group_size=500)
