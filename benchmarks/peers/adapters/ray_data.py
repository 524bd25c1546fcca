"""Ray Data: Parquet, `map`, batches for torch; one CPU for each reading process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import ray

from benchmarks.peers.adapters import parquet
from benchmarks.peers.work import Batch, Work, decode, pad, stack, tokenize

OBJECT_STORE = 1_000_000_000  # bytes


def convert(workload: str, raw: Path, to: Path) -> None:
    parquet.write(workload, raw, to)


class Batches:
    def __init__(self, work: Work, make: Any, collate: Any) -> None:
        ray.init(
            num_cpus=work.workers,
            object_store_memory=OBJECT_STORE,
            include_dashboard=False,
            log_to_driver=False,
            logging_level="ERROR",
        )
        ray.data.DataContext.get_current().enable_progress_bars = False
        self._work, self._collate = work, collate
        self._data = make()

    def __iter__(self) -> Iterator[Batch]:
        return iter(
            self._data.iter_torch_batches(
                batch_size=self._work.batch_size, collate_fn=self._rows, prefetch_batches=2
            )
        )

    def _rows(self, batch: dict[str, np.ndarray]) -> Batch:
        keys = list(batch)
        made: Batch = self._collate(
            [dict(zip(keys, values)) for values in zip(*(batch[key] for key in keys))]
        )
        return made


def _tokenized(row: dict[str, Any]) -> dict[str, Any]:
    return tokenize(row["id"], row["text"])


def _decoded(row: dict[str, Any]) -> dict[str, Any]:
    return decode(row["id"], row["jpeg"])


def padded(work: Work) -> Batches:
    return Batches(
        work, lambda: ray.data.read_parquet(work.folder, shuffle="files").map(_tokenized), pad
    )


def images(work: Work) -> Batches:
    return Batches(
        work, lambda: ray.data.read_parquet(work.folder, shuffle="files").map(_decoded), stack
    )


def close(loader: Batches) -> None:
    ray.shutdown()
