"""A mixture in real processes, whose transforms sleep: profiled, planned, run in each layout."""

from __future__ import annotations

import argparse
import functools
import json
import math
import os
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil

import evenstep.service as es
from benchmarks.lib.report import progress
from evenstep.strategy.loaders import (
    LoaderLayout,
    LoaderLimits,
    LoadModel,
    groups_of_layout,
    packed,
    three_steps,
)
from evenstep.strategy.loaders.load_model import Piece

MEBI = 1 << 20
WARM = 4  # steps before those that are measured


def by_hand(model: LoadModel, loaders: int) -> LoaderLayout:
    """Whole sources, dealt out in turn."""
    groups = [range(k, len(model.sources), loaders) for k in range(loaders)]
    return LoaderLayout.of(model, [[Piece(s, 1) for s in group] for group in groups])


def asleep(seconds: float, row: Mapping[str, Any]) -> dict[str, Any]:
    time.sleep(seconds)
    return {"input_ids": np.arange(row["length"])}


def strategy(graph: Any, mesh: Any, step: int) -> Any:
    return graph.mix().distribute("DP").balance("greedy").plan()


def as_they_are(samples: list[Any]) -> Any:
    return samples


def sleeping_job(folder: Path, options: argparse.Namespace) -> es.Job:
    rng = np.random.default_rng(options.seed)
    count = options.measured
    seconds = np.clip(rng.lognormal(math.log(0.02), 1.2, count), 1e-3, 0.09)
    weights = rng.dirichlet(np.full(count, 2.0))
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps({"length": 8 + k % 64}) + "\n" for k in range(4096)))
    sources = [
        es.Source(
            f"source-{k:03d}",
            str(path),
            transform=functools.partial(asleep, float(seconds[k])),
            weight=float(weights[k]),
        )
        for k in range(count)
    ]
    return es.Job(
        sources=sources,
        mesh=es.Mesh(DP=1),
        strategy=strategy,
        collate=as_they_are,
        draws=es.DrawOptions(samples_per_step=options.samples),
        max_tokens=1 << 20,
        seed=options.seed,
    )


def _with_workers(layout: LoaderLayout, workers: int) -> LoaderLayout:
    """With the same number for each loader."""
    loaders = tuple(replace(each, workers=workers) for each in layout.loaders)
    return replace(layout, loaders=loaders)


def _seconds(model: LoadModel, layout: LoaderLayout) -> float:
    """In which the busiest process does its part of a step."""
    most = 0.0
    for loader, pieces in zip(layout.loaders, groups_of_layout(layout)):
        own, handover, prepare = model.vectors(pieces).sum(axis=0)[3:]
        if loader.workers:
            most = max(most, own + handover, prepare / loader.workers)
        else:
            most = max(most, own + prepare)
    return most


def run(job: es.Job, layout: LoaderLayout, options: argparse.Namespace) -> dict[str, float]:
    """Seconds of a step as fast as it goes, and what a trainer waits."""
    begin = time.perf_counter()
    with es.start(
        job,
        backend="processes",
        loaders=layout,
        name=f"partitioning-{os.getpid()}",
        faults=es.FaultOptions(patience=600),
    ) as service:
        started = time.perf_counter() - begin
        client = service.client(0)
        for _ in range(WARM):
            next(client)
        free = []
        for _ in range(options.steps):
            begin = time.perf_counter()
            next(client)
            free.append(time.perf_counter() - begin)
        waits = []
        for _ in range(options.steps):
            time.sleep(options.pace)
            waits.append(next(client)[1].wait_seconds)
        children = psutil.Process().children(recursive=True)
        memory = sum(child.memory_full_info().pss for child in children)
    return {
        "measured_seconds": float(np.mean(free)),
        "wait_seconds": float(np.mean(waits[2:])),
        "processes": len(children),
        "memory_mib": memory / MEBI,
        "start_seconds": started,
    }


def measured(options: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        job = sleeping_job(Path(folder), options)
        progress("profiling")
        begin = time.perf_counter()
        profile = es.profile(job, samples=16, seconds=1.0)
        profiling = time.perf_counter() - begin
        own = [source.weight for source in job.sources]
        model = LoadModel(
            profile.of(job.names),
            options.samples * np.array([own]) / sum(own),
            LoaderLimits(
                step_seconds=options.pace,
                memory=1024 * MEBI,
                workers=3,
                process_bytes=profile.process_bytes,
            ),
        )
        best = packed(model)
        count, each = len(best.loaders), math.ceil(best.workers / len(best.loaders))
        layouts = {
            "packed": best,
            "three_steps": three_steps(model),
            "equal split, as many processes": _with_workers(by_hand(model, count), each),
            "equal split": _with_workers(by_hand(model, count), 0),
            "a loader for each source": _with_workers(by_hand(model, len(job.names)), 0),
            "one loader": _with_workers(by_hand(model, 1), 0),
        }
        rows = []
        for name, layout in layouts.items():
            progress(name)
            rows.append(
                {
                    "layout": name,
                    "loaders": len(layout.loaders),
                    "workers": layout.workers,
                    "predicted_seconds": _seconds(model, layout),
                    **run(job, layout, options),
                }
            )
        return {"pace": options.pace, "profiling_seconds": profiling, "rows": rows}
