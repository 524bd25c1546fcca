"""A script whose job is made of functions that only it has: defined here, and within functions."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from service_world import balanced, comparable, job_of, sources, steps_of, tokens_of_row

import evenstep.service as es


def doubled(row: Any) -> dict[str, Any]:
    sample = tokens_of_row(row)
    return {**sample, "input_ids": sample["input_ids"] * FACTOR}


FACTOR = 2


def strategy_by(limit: int) -> Any:
    return lambda graph, mesh, step: balanced(graph, mesh, min(step, limit))


def packed_by(width: int) -> Any:
    def collate(samples: Any) -> Any:
        return [sample["input_ids"][:width] for sample in samples]

    return collate


if __name__ == "__main__":
    folder, address = Path(sys.argv[1]), sys.argv[2]
    job = job_of(
        folder,
        sources=sources(folder, transform=doubled),
        strategy=strategy_by(3),
        collate=packed_by(4),
        workers=int(sys.argv[3]),
    )
    taken = []
    for options in (
        {"backend": "local"},
        {"ray": es.RayOptions(address=address), "name": "script"},
    ):
        with es.start(job, **options) as service:
            taken.append(comparable(steps_of(service.client(1), 3)))
    print(json.dumps({"same": taken[0] == taken[1], "first": taken[1][0][7]}), flush=True)
