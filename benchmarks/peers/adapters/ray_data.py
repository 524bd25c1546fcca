"""Ray Data: Parquet, `map`, batches for torch; `streaming_split` among ranks.

Rank 0 starts Ray, with one CPU for each reading process, and the other rank joins it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import ray

from benchmarks.peers.adapters import parquet
from benchmarks.peers.work import Batch, Work, decode, pad, stack, tokenize

NAMESPACE = "peers"
OBJECT_STORE = 1_000_000_000  # bytes


def convert(workload: str, raw: Path, to: Path) -> None:
    parquet.write(workload, raw, to)


@ray.remote(num_cpus=0)
class Shards:
    """Hands a rank its part of the dataset, as Ray Train does."""

    def __init__(self, shards: list[Any]) -> None:
        self._shards = shards

    def of(self, rank: int) -> Any:
        return self._shards[rank]


def _start(work: Work) -> None:
    address = Path(os.environ["PEERS_FOLDER"]) / "ray"
    quiet: Any = {"log_to_driver": False, "logging_level": "ERROR", "namespace": NAMESPACE}
    if work.rank == 0:
        context = ray.init(
            num_cpus=work.workers * work.ranks,
            object_store_memory=OBJECT_STORE,
            include_dashboard=False,
            **quiet,
        )
        address.with_suffix(".new").write_text(context.address_info["gcs_address"])
        address.with_suffix(".new").rename(address)
    else:
        while not address.exists():
            time.sleep(0.05)
        ray.init(address=address.read_text(), **quiet)
    ray.data.DataContext.get_current().enable_progress_bars = False


class Batches:
    def __init__(self, work: Work, make: Any, collate: Any) -> None:
        _start(work)
        self._work, self._collate = work, collate
        if work.ranks == 1:
            self._data = make()
        elif work.rank == 0:
            shards = make().streaming_split(work.ranks, equal=True)
            self._holder = Shards.options(name="shards").remote(shards)
            self._data = shards[0]
        else:
            self._data = ray.get(_named("shards").of.remote(work.rank))

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


def _named(name: str) -> Any:
    while True:
        try:
            return ray.get_actor(name)
        except ValueError:  # not yet
            time.sleep(0.05)


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
