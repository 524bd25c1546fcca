"""evenstep's service on processes: Parquet sources, a balancing strategy, a client for each rank.

Rank 0 starts the service; the other rank connects to it.
"""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import evenstep.service as es
from benchmarks.peers.adapters import parquet
from benchmarks.peers.work import SOURCES, Batch, Sample, Work, decode, pad, stack, tokenize

STATE = "state", "restore"

NAME = "peers"


def convert(workload: str, raw: Path, to: Path) -> None:
    parquet.write(workload, raw, to)


def _tokenized(row: Mapping[str, Any]) -> Sample:
    return tokenize(row["id"], row["text"])


def _decoded(row: Mapping[str, Any]) -> Sample:
    return decode(row["id"], row["jpeg"])


def _strategy(graph: Any, mesh: Any, step: int) -> Any:
    return graph.mix().distribute("DP").balance("greedy").plan()


class Batches:
    """The steps of this rank's client; of each step the one micro-batch."""

    def __init__(self, work: Work, files: Mapping[str, float], transform: Any, **more: Any) -> None:
        self._work, self._files, self._transform, self._more = work, files, transform, more
        self._state: Any = None
        self._service: Any = None
        self._client: Any = None

    def restore(self, state: Any) -> None:
        self._state = state

    def state(self) -> Any:
        return self._client.common_state()

    def __iter__(self) -> Iterator[Batch]:
        folder = Path(os.environ["PEERS_FOLDER"])
        if self._work.rank == 0:
            sources = [
                es.Source(
                    name,
                    f"{self._work.folder}/{name}-*.parquet",
                    transform=self._transform,
                    weight=weight,
                )
                for name, weight in self._files.items()
            ]
            job = es.Job(
                sources=sources,
                mesh=es.Mesh(DP=self._work.ranks),
                strategy=_strategy,
                seed=self._work.seed,
                **self._more,
            )
            self._service = es.start(
                job,
                backend="processes",
                loaders=self._work.workers * self._work.ranks,
                name=f"{NAME}-{folder.name}",
                state=self._state,
            )
            (folder / "address.new").write_bytes(pickle.dumps(self._service.address))
            (folder / "address.new").rename(folder / "address")
            self._client = self._service.client(DP=0)
        else:
            while not (folder / "address").exists():
                time.sleep(0.05)
            address = pickle.loads((folder / "address").read_bytes())
            self._client = es.Client(address, f"{NAME}-{folder.name}")
        for micro_batches, _ in self._client:
            yield from micro_batches

    def close(self) -> None:
        """The service ends once all ranks have."""
        self._client.close()
        folder = Path(os.environ["PEERS_FOLDER"])
        (folder / f"ended-{self._work.rank}").touch()
        if self._service is not None:
            while len(list(folder.glob("ended-*"))) < self._work.ranks:
                time.sleep(0.05)
            self._service.close()


ONCE = es.DrawOptions(stop="all_exhausted")


def padded(work: Work) -> Batches:
    options: Any = {"collate": pad, "max_tokens": work.max_tokens, "draws": ONCE}
    return Batches(work, {"text": 1.0}, _tokenized, **options)


def _one(sample: Sample) -> int:
    return 1


def images(work: Work) -> Batches:
    draws = es.DrawOptions(samples_per_step=work.batch_size * work.ranks, stop="all_exhausted")
    options: Any = {"collate": stack, "max_tokens": work.batch_size, "draws": draws}
    options["measures"] = es.MeasureOptions(modalities={"image": _one}, supervised=_one)
    return Batches(work, {"images": 1.0}, _decoded, **options)


def mixture(work: Work) -> Batches:
    weights = {f"{source:02}": weight for source, weight in zip(range(SOURCES), work.weights())}
    return Batches(work, weights, _tokenized, collate=pad, max_tokens=work.max_tokens)


def close(loader: Batches) -> None:
    loader.close()
