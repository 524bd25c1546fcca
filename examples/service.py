"""Three sources to the ranks of a mesh: the micro-batches of each rank, step by step.

    python examples/service.py                        all roles in this process
    python examples/service.py --backend processes    each role a process of this machine
    python examples/service.py --backend ray          each role an actor of Ray, on this machine

Two data-parallel groups, each of two context-parallel ranks that share rows, and two
tensor-parallel peers of which the first broadcasts. A trainer has one client and the loop over it;
in another process it makes the client by ``es.Client(address, job_name)``. All backends deliver the
same batches.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
from pathlib import Path
from typing import Any

import evenstep.service as es
from evenstep.mixture import WarmUp
from evenstep.strategy import DGraph, LoadingPlan
from evenstep.strategy.mesh import ClientPlaceTree

SOURCES = {"code": (5.0, 0.3), "web": (4.0, 0.5), "books": (6.5, 0.2)}
"""By name, the logarithm of the median length, and the weight."""


def tokenize(row: dict[str, Any]) -> dict[str, Any]:
    """Turns a stored document into a sample, whose tokens are bytes."""
    return {"input_ids": list(row["text"].encode())}


def cost(lengths: Any) -> Any:
    """Cost of attention and of everything else, in any unit."""
    return lengths * (lengths + 4096)


def strategy(graph: DGraph, mesh: ClientPlaceTree, step: int) -> LoadingPlan:
    graph = graph.mix().distribute("DP").cost(cost).balance("karmarkar_karp")
    return graph.broadcast_at("TP").plan()


def write(folder: Path) -> None:
    """Documents of very uneven length."""
    drawn = random.Random(0)
    for name, (median, _) in SOURCES.items():
        lengths = [min(int(drawn.lognormvariate(median, 0.8)) + 1, 4000) for _ in range(400)]
        lines = (json.dumps({"text": name[0] * length}) for length in lengths)
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")


def main(backend: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder))
        weights = {name: weight for name, (_, weight) in SOURCES.items()}
        job = es.Job(
            sources=[
                es.Source(name, f"{folder}/{name}.jsonl", transform=tokenize) for name in SOURCES
            ],
            mesh=es.Mesh(DP=2, CP=2, TP=2),
            strategy=strategy,
            draws=es.DrawOptions(schedule=WarmUp(start={"web": 1.0}, end=weights, steps=5)),
            micro_batches=4,
            max_tokens=4096,
        )
        with es.start(job, backend=backend, loaders=2) as service:
            clients = [service.client(rank) for rank in range(len(job.tree))]
            for client in clients:
                if not client.fetches:
                    print(f"rank {client.rank} ({client.place}) fetches nothing")
            fetching = [client for client in clients if client.fetches]
            for _ in range(8):
                for client in fetching:
                    micro_batches, step = next(client)
                    if client.rank == 0:
                        shares = ", ".join(f"{n} {w:.2f}" for n, w in step.weights.items())
                        print(
                            f"step {step.step}: imbalance {step.imbalance_before:.2f} -> "
                            f"{step.imbalance:.2f}; {shares}"
                        )
                    tokens = [batch["input_ids"].shape[1] for batch in micro_batches]
                    print(f"  rank {client.rank}: micro-batches of {tokens} tokens")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Three sources to the ranks of a mesh.")
    parser.add_argument("--backend", choices=("local", "processes", "ray"), default="local")
    main(parser.parse_args().backend)
