"""OVERLORD's Algorithm 2: the images of a sample apart, as printed, beside together."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from benchmarks.papers.outcome import Outcome, Table
from benchmarks.service.corpora import PAGES, PATCHES, VIT_1B, cells_of
from evenstep.arrays import Int64Array
from evenstep.strategy.balance.methods import bins_by, sample_costs

CLIENTS = (8, 32, 128)
SAMPLES = 4
"""Of each client in a step, with images."""


def images(folder: Path) -> list[Int64Array]:
    """Patches of the images of each sample that has any."""
    rows = pq.read_table(folder / f"{PAGES}.parquet", columns=["image_w", "image_h"]).to_pydict()
    pairs = zip(rows["image_w"], rows["image_h"])
    return [PATCHES * cells_of(wide, high) for wide, high in pairs if wide]


def algorithm_2(seed: int) -> Outcome:
    folder = os.environ.get("EVENSTEP_DATA")
    if folder is None:
        sys.exit(f"EVENSTEP_DATA must name a folder with {PAGES}.parquet")
    samples = images(Path(folder))
    order = np.random.default_rng(seed).permutation(len(samples))
    rows = []
    for clients in CLIENTS:
        drawn = [samples[k] for k in order[: SAMPLES * clients].tolist()]
        patches = np.concatenate(drawn)
        costs = np.asarray(sample_costs(VIT_1B, patches))
        sample = np.arange(len(drawn)).repeat([len(each) for each in drawn])
        whole = np.bincount(sample, costs)
        together = bins_by("greedy", np.rint(whole / 1e6).astype(np.int64), clients)
        apart = bins_by("greedy", sample_costs(VIT_1B, patches), clients)
        loads = [np.bincount(together, whole), np.bincount(apart, costs)]
        arrival = np.bincount(np.arange(len(drawn)) % clients, whole)
        spread = len({*zip(sample.tolist(), apart.tolist())}) / len(drawn)
        rows.append(
            [
                f"{clients}",
                f"{len(drawn):,}",
                f"{len(patches):,}",
                *(f"{load.max() / load.mean():.2f}" for load in (arrival, *loads)),
                f"{spread:.1f}",
            ]
        )
    header = ["clients", "samples", "images", "in turn", "a sample's images together", "apart"]
    header += ["clients that share a sample"]
    return Outcome(
        [Table(header, rows, "Largest client's cost over the mean, ViT-1B")],
        "single images",
        f"largest client {rows[1][4]} times the mean together, {rows[1][5]} apart",
    )
