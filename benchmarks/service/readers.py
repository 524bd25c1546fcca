"""The readers that `throughput.py` compares. Each mixes the same sources in its own way, and yields
the number of samples of each packed step."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

import evenstep.service as es
from benchmarks.service.mix import (
    MOSAIC,
    Setting,
    prepared,
    sources_of,
    strategy,
    streams_of,
    weights_of,
)
from evenstep.data import open_reader
from evenstep.service.startup import BACKENDS

__all__ = ["NAMES", "READERS", "Reading", "missing"]

Steps = Iterator[int]


@dataclass(frozen=True)
class Reading:
    """What is read, and by how many processes."""

    folder: Path
    sources: int
    setting: Setting
    loaders: int
    seed: int
    counters: dict[str, Callable[[], Mapping[str, Any]]]
    """Where a reader puts functions that count what it sends, by name."""


def with_torch(reading: Reading) -> Steps:
    from torch.utils.data import IterableDataset, get_worker_info

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

    yield from _by_torch(Mixed(), reading)


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
            **_ray_options(), log_to_driver=False, logging_level="ERROR", include_dashboard=False
        )
        seconds = time.perf_counter() - begin
        reading.counters["ray"] = lambda: {"seconds": seconds}
    with es.start(job, backend=backend, **more) as service:
        reading.counters["messages"] = lambda: service.status().get("messages", {})
        for _, step in service.client(0):
            yield sum(len(table) for table in step.samples)


def with_ray_data(reading: Reading) -> Steps:
    """One dataset for each source, mixed by whole blocks; samples packed where they arrive."""
    import logging

    import ray

    from evenstep.batch.pack import PackCollator

    ray.init(**_ray_options(), log_to_driver=False, logging_level="ERROR", include_dashboard=False)
    ray.data.DataContext.get_current().enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    # Every source's reading and mapping is a task of its own, which must not wait for all others.
    share = min(reading.loaders, os.cpu_count() or 1) / (2 * reading.sources)
    each = [
        ray.data.read_parquet(f"{reading.folder}/{k}", num_cpus=share).map(
            _transform(reading), num_cpus=share
        )
        for k in range(reading.sources)
    ]
    mixed = each[0].mix(*each[1:], weights=weights_of(reading.sources))
    pack = PackCollator()
    while True:
        for batch in mixed.iter_batches(
            batch_size=reading.setting.samples,
            batch_format="numpy",
            prefetch_batches=2,
            drop_last=True,
        ):
            samples = [{"input_ids": np.array(ids)} for ids in batch["input_ids"]]
            pack(samples)
            yield len(samples)


def with_datasets(reading: Reading) -> Steps:
    """`datasets` streaming and `interleave_datasets`, in workers of torch's DataLoader."""
    import datasets

    datasets.disable_progress_bars()
    each = [
        datasets.load_dataset(
            "parquet",
            data_files=f"{reading.folder}/{k}/*.parquet",
            split="train",
            streaming=True,
            cache_dir=str(reading.folder / "cache"),
        )
        .map(_transform(reading), remove_columns=["tokens"])
        .repeat(None)
        for k in range(reading.sources)
    ]
    weights = np.array(weights_of(reading.sources))
    mixed = datasets.interleave_datasets(
        each, probabilities=(weights / weights.sum()).tolist(), seed=reading.seed
    )
    yield from _by_torch(mixed, reading)


def with_mosaic(reading: Reading) -> Steps:
    """MosaicML's StreamingDataset, a stream for each source, in workers of torch's DataLoader."""
    from streaming import Stream, StreamingDataset

    transform = _transform(reading)

    class Prepared(StreamingDataset):  # type: ignore[misc]
        def __getitem__(self, at: Any) -> Any:
            return transform(super().__getitem__(at))

    weights = np.array(weights_of(reading.sources))
    folders = streams_of(reading.folder, reading.sources)
    streams = [
        Stream(local=str(folder), proportion=float(share))
        for folder, share in zip(folders, weights / weights.sum())
    ]
    mixed = Prepared(
        streams=streams,
        shuffle=True,
        shuffle_seed=reading.seed,
        batch_size=reading.setting.samples,
        epoch_size=reading.setting.samples * 10_000,
    )
    yield from _by_torch(mixed, reading)


def missing(reader: str) -> str | None:
    """Why a reader cannot run here; None if it can."""
    needed = {"datasets": ["datasets"], "mosaic": MOSAIC, "ray": ["ray"], "ray_data": ["ray"]}
    for package in needed.get(reader, ()):
        if find_spec(package) is None:
            return f"{package} is not installed"
    if reader == "processes" and reader not in BACKENDS:
        return "this release has no such backend"
    return None


def _by_torch(dataset: Any, reading: Reading) -> Steps:
    from torch.utils.data import DataLoader

    from evenstep.batch.pack import PackCollator

    loader = DataLoader(
        dataset,
        batch_size=reading.setting.samples,
        num_workers=reading.loaders,
        collate_fn=PackCollator(),
        multiprocessing_context="fork",
    )
    while True:
        for _ in loader:
            yield reading.setting.samples


def _transform(reading: Reading) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    return partial(prepared, milliseconds=reading.setting.transform_ms)


def _ray_options() -> dict[str, Any]:
    return {"num_cpus": os.cpu_count(), "object_store_memory": 500_000_000}


READERS: dict[str, Callable[[Reading], Steps]] = {
    "torch": with_torch,
    "processes": partial(with_service, backend="processes"),
    "ray": partial(with_service, backend="ray"),
    "ray_data": with_ray_data,
    "datasets": with_datasets,
    "mosaic": with_mosaic,
}
NAMES = {
    "torch": "torch DataLoader",
    "processes": "service, processes",
    "ray": "service, Ray",
    "ray_data": "Ray Data",
    "datasets": "HF datasets",
    "mosaic": "MosaicML Streaming",
}
