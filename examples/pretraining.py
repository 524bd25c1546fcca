"""Pretraining documents of four sources, weighted by tokens, in micro-batches of equal cost.

    python examples/pretraining.py

`WorkloadPacking` forms micro-batches for two data-parallel groups of two context-parallel ranks,
which share every row. The job is stopped after some steps and started again from a saved state: the
steps that follow are those that would have followed.
"""

from __future__ import annotations

import json
import random
import tempfile
from pathlib import Path
from typing import Any

import evenstep
import evenstep.service as es

SHARES = {"web": 0.5, "code": 0.25, "books": 0.15, "papers": 0.1}


def tokenize(row: dict[str, Any]) -> dict[str, Any]:
    return {"input_ids": list(row["text"].encode())}


def job_over(folder: Path) -> es.Job:
    drawn = random.Random(0)
    for name in SHARES:
        lengths = [min(int(drawn.lognormvariate(5.5, 1)) + 1, 4000) for _ in range(600)]
        rows = (json.dumps({"text": name[0] * length}) + "\n" for length in lengths)
        (folder / f"{name}.jsonl").write_text("".join(rows))
    return es.Job(
        sources=[
            es.Source(name, str(folder / f"{name}.jsonl"), transform=tokenize, weight=share)
            for name, share in SHARES.items()
        ],
        mesh=es.Mesh(DP=2, CP=2),
        policy=evenstep.WorkloadPacking(4096, micro_batches=2),
        draws=es.DrawOptions(by="tokens"),
    )


def train(job: es.Job, steps: int, state: dict[str, Any] | None = None) -> dict[str, Any]:
    with es.start(job, backend="processes", loaders=2, state=state) as service:
        clients = [service.client(rank) for rank in range(len(job.tree))]
        for _ in range(steps):
            (micro_batches, step), *_ = [next(client) for client in clients]
            shapes = [tuple(batch["input_ids"].shape) for batch in micro_batches]
            print(f"step {step.step}: rank 0 has {shapes}, imbalance {step.imbalance:.3f}")
        state = clients[0].state_dict()
        assert state is not None
        return state


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        job = job_over(Path(folder))
        train(job, 5, train(job, 5))

# step 0: rank 0 has [(1, 2041), (1, 2068)], imbalance 1.001
# step 1: rank 0 has [(1, 2050), (1, 2052)], imbalance 1.000
# ...
