"""A job whose weights move from 90 % cheap text to 60 % images of 30 ms and back: what a trainer
waits in a step before, while and after, with loaders that follow and with those of the first step.

Images sleep, so that many processes run on few cores. Batches of both runs are compared.
"""

from __future__ import annotations

import functools
import json
import os
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

import evenstep.service as es
from benchmarks.lib.report import Table, parser, progress, show
from evenstep.mixture import Staged, WarmUp
from evenstep.strategy import DGraph, LoadingPlan
from evenstep.strategy.mesh import ClientPlaceTree

USUAL = {"text": 0.9, "images": 0.1}
COSTLY = {"text": 0.4, "images": 0.6}
PHASES = ("before", "while they move", "costly", "while they move back", "after")
PACE = 0.5  # seconds that a step is trained
SAMPLES, WORKERS = 64, 4  # of a step, and of a loader at most
SECONDS = {"text": 0.0002, "images": 0.03}


def asleep(seconds: float, row: Mapping[str, Any]) -> dict[str, Any]:
    time.sleep(seconds)
    return {"input_ids": np.arange(row["length"])}


def strategy(graph: DGraph, mesh: ClientPlaceTree, step: int) -> LoadingPlan:
    return graph.mix().distribute("DP").balance("greedy").plan()


def as_they_are(samples: list[Any]) -> Any:
    return samples


def moving_job(folder: Path, part: int) -> es.Job:
    """Weights move for as many steps as they stay."""
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps({"length": 8 + k % 64}) + "\n" for k in range(4096)))
    up = WarmUp(start=USUAL, end=COSTLY, begin=part, steps=part)
    down = WarmUp(start=COSTLY, end=USUAL, begin=3 * part, steps=part)
    return es.Job(
        sources=[
            es.Source(name, str(path), transform=functools.partial(asleep, seconds))
            for name, seconds in SECONDS.items()
        ],
        mesh=es.Mesh(DP=1),
        strategy=strategy,
        collate=as_they_are,
        draws=es.DrawOptions(
            schedule=Staged({0: up, 2 * part: COSTLY, 3 * part: down}), samples_per_step=SAMPLES
        ),
        max_tokens=1 << 20,
    )


def run(job: es.Job, steps: int, loaders: Any) -> dict[str, Any]:
    """By step: what the trainer waits, and which samples it gets."""
    waits, ids = [], []
    name = f"scaling-{os.getpid()}"
    patient = es.ServiceFaults(patience=600)
    with es.start(job, backend="processes", name=name, faults=patient, loaders=loaders) as service:
        client = service.client(0)
        for _ in range(5 * steps):
            _, step = next(client)
            waits.append(step.wait_seconds)
            ids.append(step.sample_ids)
            time.sleep(PACE)
        status = service.status()
    return {"waits": waits, "ids": ids, "changes": status.get("scaled", [])}


def phases(waits: list[float], part: int) -> dict[str, float]:
    """Mean wait of a step, without the first."""
    found = {}
    for number, name in enumerate(PHASES):
        found[name] = float(np.mean(waits[max(number * part, 1) : (number + 1) * part]))
    return found


def main() -> None:
    command = "python -m benchmarks.service.scaling --steps 60"
    options = parser(__doc__ or "", command, repeats=1)
    options.add_argument("--steps", type=int, default=60, help="of each of five phases")
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        job = moving_job(Path(folder), given.steps)
        progress("profile")
        profile = es.profile(job, samples=32, seconds=2.0)
        progress("with loaders that follow")

        def scaling() -> es.LoaderScaling:
            return es.LoaderScaling(
                job, profile, step_seconds=PACE, memory=4 << 30, workers=WORKERS
            )

        runs = {"scaled": run(job, given.steps, scaling())}
        progress("with those of the first step")
        runs["as at the start"] = run(job, given.steps, scaling().layout)
    assert runs["scaled"].pop("ids") == runs["as at the start"].pop("ids"), "batches differ"
    rows = [
        [name, *(f"{seconds:.3f}" for seconds in phases(ran["waits"], given.steps).values())]
        for name, ran in runs.items()
    ]
    changes = [
        [f"{change[what]}" for what in ("step", "loaders", "workers")]
        for change in runs["scaled"]["changes"]
    ]
    show(
        Table(["mean wait of a step, s", *PHASES], rows),
        Table(["step", "loaders", "workers"], changes, "changes of loaders"),
        as_json=given.json,
    )


if __name__ == "__main__":
    main()
