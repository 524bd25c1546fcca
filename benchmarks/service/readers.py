"""The readers that `throughput.py` compares. Each mixes the same sources in its own way, and yields
the number of samples of each packed step."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import evenstep.service as es
from benchmarks.service.mix import Setting, sources_of, strategy
from evenstep.data import open_reader

Steps = Iterator[int]


@dataclass(frozen=True)
class Reading:
    """What is read, and by how many processes."""

    folder: Path
    sources: int
    setting: Setting
    loaders: int
    seed: int
    seconds: dict[str, float]
    """Where a reader puts seconds of its start, by name."""


def with_torch(reading: Reading) -> Steps:
    from torch.utils.data import DataLoader, IterableDataset, get_worker_info

    from evenstep.batch.pack import PackCollator

    class Mixed(IterableDataset[Any]):
        """Every worker has all sources open."""

        def __iter__(self) -> Iterator[Any]:
            info = get_worker_info()
            seed = reading.seed + (0 if info is None else info.id)
            sources = sources_of(reading.folder, reading.sources, reading.setting)
            streams = [open_reader(source, seed=seed).read(passes=1_000) for source in sources]
            weights = np.array([source.weight for source in sources])
            rng = np.random.default_rng(seed)
            while True:
                for k in rng.choice(len(streams), 64, p=weights / weights.sum()).tolist():
                    yield next(streams[k]).sample

    loader = DataLoader(
        Mixed(),
        batch_size=reading.setting.samples,
        num_workers=reading.loaders,
        collate_fn=PackCollator(),
        multiprocessing_context="fork",
    )
    for _ in loader:
        yield reading.setting.samples


def with_service(reading: Reading, backend: str) -> Steps:
    setting = reading.setting
    job = es.Job(
        sources=sources_of(reading.folder, reading.sources, setting),
        mesh=es.Mesh(DP=1),
        strategy=strategy,
        max_tokens=setting.samples * setting.most_tokens,
        draws=es.DrawOptions(samples_per_step=setting.samples, stop="repeat"),
        seed=reading.seed,
    )
    more: dict[str, Any] = {"loaders": reading.loaders, "name": f"throughput-{os.getpid()}"}
    if backend == "ray":
        import ray

        begin = time.perf_counter()
        ray.init(
            num_cpus=os.cpu_count(),
            object_store_memory=500_000_000,
            log_to_driver=False,
            logging_level="ERROR",
            include_dashboard=False,
        )
        reading.seconds["ray_seconds"] = time.perf_counter() - begin
    with es.start(job, backend=backend, **more) as service:
        for _, step in service.client(0):
            yield step.samples


READERS: dict[str, Callable[[Reading], Steps]] = {
    "torch": with_torch,
    "processes": partial(with_service, backend="processes"),
    "ray": partial(with_service, backend="ray"),
}
NAMES = {
    "torch": "torch DataLoader",
    "processes": "service, processes",
    "ray": "service, Ray",
}
