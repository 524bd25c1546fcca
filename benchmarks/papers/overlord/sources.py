"""Figures 4 and 5 of the OVERLORD paper: the memory and time that local sources cost.

Every source of the corpora in the folder that EVENSTEP_DATA names becomes a Parquet file of its
own, and `evenstep.service.profile` measures it in processes: memory of the open source and time to
tokenize a sample.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from tokenizers import Tokenizer

import evenstep.service as es
from benchmarks.lib.report import progress
from benchmarks.papers.outcome import Outcome, Table

CORPORA = ("t0_permissive", "chat_multi", "code_repos", "mm_interleaved_docs")
SAMPLES, SECONDS = 12, 0.3
MEBI = 1 << 20
_EVERY = 3


class Tokenize:
    """Tokenizes a row's text. A process loads the tokenizer when it gets this, not with its first
    sample."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.tokenizer = Tokenizer.from_file(path)

    def __call__(self, row: Mapping[str, Any]) -> dict[str, Any]:
        return {"input_ids": np.array(self.tokenizer.encode(row["text"]).ids, np.int64)}

    def __reduce__(self) -> tuple[Any, ...]:
        return Tokenize, (self.path,)


def split(folder: Path, to: Path) -> list[es.Source]:
    """A file for each source of each corpus; of them, every `_EVERY`th, as each takes a process."""
    transform = Tokenize(str(folder / "tokenizer.json"))
    made = []
    for corpus in CORPORA:
        whole = pq.read_table(folder / f"{corpus}.parquet")
        sources = np.array(whole["source"].to_pylist())
        for number, source in enumerate(np.unique(sources).tolist()):
            path = to / f"{corpus}-{number}.parquet"
            rows = pa.array(np.flatnonzero(sources == source))
            pq.write_table(whole.select(["text"]).take(rows), path)
            made.append(es.Source(f"{corpus}, {source}", str(path), transform=transform))
    return made[::_EVERY]


def strategy(graph: Any, mesh: Any, step: int) -> Any:
    return graph.mix().distribute("DP").plan()


def profiled(seed: int) -> es.JobProfile:
    folder = os.environ.get("EVENSTEP_DATA")
    if folder is None:
        sys.exit("EVENSTEP_DATA must name a folder with " + ", ".join(CORPORA))
    with tempfile.TemporaryDirectory() as to:
        job = es.Job(
            sources=split(Path(folder), Path(to)),
            mesh=es.Mesh(DP=1),
            strategy=strategy,
            draws=es.DrawOptions(samples_per_step=8),
            max_tokens=1 << 20,
            seed=seed,
        )
        return es.profile(job, samples=SAMPLES, seconds=SECONDS)


def figures_4_5(seed: int) -> Outcome:
    profile = profiled(seed)
    progress("")
    each = list(profile.sources.values())
    memory = np.array([source.file_bytes for source in each]) / MEBI
    latency = np.array([source.prepare_seconds for source in each]) * 1e3
    marks = (10, 25, 50, 75, 90, 99, 100)
    rows = [
        [name, *(f"{value:,.2f}" for value in (*np.percentile(values, marks), values.mean()))]
        for name, values in (
            ("memory of the open source, MiB", memory),
            ("time to prepare a sample, ms", latency),
        )
    ]
    header = ["", *(f"{mark} %" for mark in marks), "mean"]
    return Outcome(
        [Table(header, rows, f"{len(each)} sources, at most {SAMPLES} samples of each")],
        "both skewed by orders of magnitude",
        f"latency from {latency.min():.2f} to {latency.max():.0f} ms, memory up to "
        f"{memory.max():.1f} MiB",
    )
