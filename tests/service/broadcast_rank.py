"""A rank of examples/broadcast.py that prints a digest of what it gets, for `test_broadcast`."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))

import broadcast

import evenstep.service as es

taken: list[Any] = []
clients: list[int] = []


class Counted(es.Client):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        clients.append(self.rank)


def digest(batches: list[dict[str, Any]]) -> str:
    """Of all fields of all micro-batches: names, types, shapes and values."""
    parts = [[name, str(t.dtype), t.tolist()] for batch in batches for name, t in batch.items()]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def noted(number: int, batches: list[dict[str, Any]], scales: list[float]) -> None:
    taken.append([number, scales, digest(batches)])
    if number + 1 == broadcast.STEPS:
        said = {"rank": dist.get_rank(), "clients": clients, "taken": taken}
        (Path(sys.argv[1]) / f"{dist.get_rank()}.json").write_text(json.dumps(said))


if __name__ == "__main__":
    es.Client, broadcast.train = Counted, noted
    broadcast.main()
