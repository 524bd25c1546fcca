"""How long trainers wait after a loader is killed: with a standby that has its sources open, with
none, so that the loader starts again, and where the whole job starts again from its state.

Sources take seconds to open, as a listing of an object store does. The trainer is a step of 0.1 s
with `prefetch` steps ahead. Waits are the longest of the steps after the kill; of a job that starts
again the time from the kill to its first batch.
"""

from __future__ import annotations

import functools
import os
import signal
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

import evenstep
import evenstep.service as es
from benchmarks.lib.report import Spread, Table, in_turn, parser, progress, show

PACE = 0.1  # seconds that a step is trained
STEPS = 40  # watched after a kill
OPEN = (0.0, 2.5, 10.0)


class SlowRows:
    """A map-style dataset."""

    def __init__(self, seconds: float) -> None:
        time.sleep(seconds)

    def __len__(self) -> int:
        return 20_000

    def __getitem__(self, index: int) -> Mapping[str, Any]:
        return {"input_ids": np.full(50 + index % 200, index % 50)}


def job_of(seconds: float) -> es.Job:
    return es.Job(
        sources=[es.Source("slow", functools.partial(SlowRows, seconds))],
        mesh=es.Mesh(DP=1),
        policy=evenstep.Even(4096),
        draws=es.DrawOptions(samples_per_step=24),
        memory=es.ServiceMemory(prefetch=4),
    )


def started(job: es.Job, backend: str, standbys: int, **more: Any) -> Any:
    faults = es.ServiceFaults(standbys=standbys)
    name = f"recovery-{os.getpid()}-{time.time_ns()}"
    return es.start(job, backend=backend, name=name, loaders=1, faults=faults, **more)


def longest_wait(backend: str, seconds: float, standbys: int) -> float:
    """Of the steps after the only loader was killed."""
    with started(job_of(seconds), backend, standbys) as service:
        client = service.client(0)
        _train(client, 10)
        while standbys and not all(each["opened"] for each in service.status()["standbys"]):
            _train(client, 1)
        os.kill(service.status()["loaders"][0]["process"]["process"], signal.SIGKILL)
        return _train(client, STEPS)


def whole_start(backend: str, seconds: float) -> float:
    """From the end of a job to the first batch of the next one, from its state."""
    job = job_of(seconds)
    with started(job, backend, 0) as service:
        _train(service.client(0), 10)
        state = service.state_dict(10)
    begin = time.monotonic()
    with started(job, backend, 0, state=state) as service:
        _train(service.client(0), 1)
        return time.monotonic() - begin - PACE


def _train(client: Any, steps: int) -> float:
    """The longest wait."""
    longest = 0.0
    for _ in range(steps):
        longest = max(longest, next(client)[1].wait_seconds)
        time.sleep(PACE)
    return longest


KINDS = ("standby", "loader starts again", "job starts again")


def measured(backend: str, seconds: float, kind: str) -> float:
    if kind == "job starts again":
        return whole_start(backend, seconds)
    return longest_wait(backend, seconds, int(kind == "standby"))


def main() -> None:
    command = "python -m benchmarks.service.recovery --backends processes"
    options = parser(__doc__ or "", command, repeats=3)
    options.add_argument("--backends", nargs="+", default=["processes", "ray"])
    given = options.parse_args()
    cases = [(backend, seconds) for backend in given.backends for seconds in OPEN]
    rows = []
    if "ray" in given.backends:
        import ray

        ray.init(num_cpus=8, include_dashboard=False, logging_level="error")  # for all jobs
    for backend, seconds in cases:
        progress(f"{backend}, sources that open in {seconds} s")
        runs = in_turn(KINDS, given.repeats, lambda kind: measured(backend, seconds, kind))  # noqa: B023
        found = [Spread.of(runs[kind]).text(2) for kind in KINDS]
        rows.append([backend, f"{seconds:g}", *found])
    show(
        Table(["backend", "opens in, s", *KINDS], rows, "longest wait of a trainer, s"),
        as_json=given.json,
    )


if __name__ == "__main__":
    main()
