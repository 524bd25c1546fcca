"""Three sources to the ranks of a mesh: the micro-batches of each rank, step by step.

    python examples/service.py              all roles in this process
    python examples/service.py processes    each role a process of this machine
    python examples/service.py ray          each role an actor of Ray, on this machine

Two data-parallel groups, each of two context-parallel ranks that share rows, and two
tensor-parallel peers of which the first broadcasts. A trainer has one client and the loop over it;
in another process it makes the client by ``es.Client(address, job_name)``. All backends deliver the
same batches.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import evenstep.service as es
from evenstep.strategy import DGraph, LoadingPlan
from evenstep.strategy.mesh import ClientPlaceTree

SOURCES = {"pages": ("\0", 0.2), "paragraphs": ("\n\n", 0.3), "lines": ("\n", 0.5)}
"""Parts of Python's own manual, by name: where they are cut, and their weight."""


def tokenize(row: dict[str, Any]) -> dict[str, Any]:
    """Turns a stored document into a sample, whose tokens are bytes."""
    return {"input_ids": list(row["text"].encode())[:4000]}


def strategy(graph: DGraph, mesh: ClientPlaceTree, step: int) -> LoadingPlan:
    return graph.mix().distribute("DP").balance("karmarkar_karp").broadcast_at("TP").plan()


def write(folder: Path) -> None:
    for name, (cut, _) in SOURCES.items():
        parts = (part for page in topics.values() for part in page.split(cut) if part)
        text = "".join(json.dumps({"text": part}) + "\n" for part in parts)
        (folder / f"{name}.jsonl").write_text(text)


def main(backend: str = "local") -> None:
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder))
        job = es.Job(
            sources=[
                es.Source(name, f"{folder}/{name}.jsonl", transform=tokenize, weight=weight)
                for name, (_, weight) in SOURCES.items()
            ],
            mesh=es.Mesh(DP=2, CP=2, TP=2),
            strategy=strategy,
            micro_batches=4,
            max_tokens=4096,
        )
        with es.start(job, backend=backend, loaders=2) as service:
            clients = [service.client(rank) for rank in range(len(job.tree))]
            for client in clients:
                if not client.fetches:
                    print(f"rank {client.rank} ({client.place}) fetches nothing")
            for number in range(8):
                for client in filter(lambda client: client.fetches, clients):
                    micro_batches, step = next(client)
                    if client.rank == 0:
                        gain = f"{step.imbalance_before:.2f} -> {step.imbalance:.2f}"
                        print(f"step {number}: imbalance {gain}")
                    tokens = [batch["input_ids"].shape[1] for batch in micro_batches]
                    print(f"  rank {client.rank}: micro-batches of {tokens} tokens")


if __name__ == "__main__":
    main(*sys.argv[1:])

# rank 1 (PP=0 DP=0 CP=0 TP=1) fetches nothing
# step 0: imbalance 1.32 -> 1.00
#   rank 0: micro-batches of [2000, 1772, 1769, 1769] tokens
