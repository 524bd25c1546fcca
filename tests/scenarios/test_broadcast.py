"""`broadcast_at` over a real process group: one rank of each group fetches, all get the same."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import Rank, run

pytest.importorskip("zmq", reason="pyzmq is not installed")

sys.path.append(str(Path(__file__).parents[2] / "examples"))

import broadcast

import evenstep.service as es


def digest(batches: list[dict[str, Any]]) -> str:
    """Of all tensors of all micro-batches: names, types, shapes and values."""
    tensors = [(n, t) for batch in batches for n, t in batch.items() if torch.is_tensor(t)]
    parts = [[name, str(t.dtype), t.tolist()] for name, t in tensors]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def take_steps(rank: Rank) -> tuple[list[int], list[Any]]:
    """The example, but that it notes its clients and the steps that it gets."""
    clients: list[int] = []
    taken: list[Any] = []

    class Counted(es.Client):
        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            clients.append(self.rank)

    def note(number: int, batches: list[dict[str, Any]], scales: list[float]) -> None:
        taken.append((number, list(scales), digest(batches)))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dist, "init_process_group", lambda backend: None)  # the ranks have one
        patch.setattr(es, "Client", Counted)
        patch.setattr(broadcast, "train", note)
        patch.setattr(broadcast, "NAME", f"broadcast-{os.getppid()}")
        patch.setenv("RANK", str(rank.rank))
        broadcast.main()
    if rank.rank == 0:  # where services are found: empty
        (Path(tempfile.gettempdir()) / f"evenstep-{os.getuid()}").rmdir()
    return clients, taken


def test_four_ranks_of_which_two_fetch_get_what_the_planner_gave_them(tmp_path: Path) -> None:
    ranks = run(take_steps, 4, folder=tmp_path, within=90)
    assert [clients for clients, _ in ranks] == [[0], [], [2], []]
    with es.start(broadcast.job_of(tmp_path), backend="local") as local:
        for group in range(broadcast.DP):
            client = local.client(DP=group, TP=0)
            planned = []
            for number in range(broadcast.STEPS):
                batches, step = next(client)
                planned.append((number, list(step.loss_scales), digest(batches)))
            for _, taken in ranks[broadcast.TP * group :][: broadcast.TP]:
                assert taken == planned
    assert ranks[0][1] != ranks[2][1]
