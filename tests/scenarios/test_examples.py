"""The examples of a job that is resumed, and of ranks of which one fetches for all, do what their
first lines say."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
import runpy
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint  # here, and not in each rank
from ranks import Rank, run

import evenstep

EXAMPLES = Path(__file__).parents[2] / "examples"
sys.path.append(str(EXAMPLES))


def small(loader: Any, dataset: Any, **options: Any) -> evenstep.DataLoader:
    """The example's loader, with smaller steps and workers that start sooner."""
    options["policy"] = evenstep.Even(max_tokens=1024)
    return loader(dataset, **options, multiprocessing_context="fork")


def resume(rank: Rank, *arguments: str) -> list[tuple[str, str]]:
    """The checkpoints that this rank says it has saved, and the number of ranks."""
    said = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(said):
        patch.setattr(dist, "init_process_group", lambda backend: None)  # the ranks have one
        patch.setattr(sys, "argv", ["resume.py", *arguments])
        patch.setattr(evenstep, "DataLoader", partial(small, evenstep.DataLoader))
        runpy.run_path(str(EXAMPLES / "resume.py"), run_name="__main__")
    return re.findall(r"step-(\d+) on (\d) ranks", said.getvalue())


def test_a_stopped_job_resumes_on_fewer_ranks(tmp_path: Path) -> None:
    (saved := tmp_path / "saved").mkdir()
    arguments = ("--folder", str(saved), "--stop-after")
    first, silent = run(resume, 2, *arguments, "6", folder=tmp_path / "first", within=90)
    (second,) = run(resume, 1, *arguments, "6", folder=tmp_path / "second", within=90)
    assert [ranks for _, ranks in first + second] == ["2", "2", "1", "1"]
    assert not silent
    steps = [step for step, _ in first + second]
    assert steps == sorted(set(steps))


def digest(batches: list[dict[str, Any]]) -> str:
    """Of all tensors of all micro-batches: names, types, shapes and values."""
    tensors = [(n, t) for batch in batches for n, t in batch.items() if torch.is_tensor(t)]
    parts = [[name, str(t.dtype), t.tolist()] for name, t in tensors]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def take_steps(rank: Rank) -> tuple[list[int], list[Any]]:
    """The example, but that it notes its clients and the steps that it gets."""
    import broadcast

    import evenstep.service as es

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
    pytest.importorskip("zmq", reason="pyzmq is not installed")
    import broadcast

    import evenstep.service as es

    ranks = run(take_steps, 4, folder=tmp_path, within=90)
    assert [clients for clients, _ in ranks] == [[0], [], [2], []]
    with es.start(broadcast.job_of(), backend="local") as local:
        for group in range(broadcast.DP):
            client = local.client(DP=group, TP=0)
            planned = []
            for number in range(broadcast.STEPS):
                batches, step = next(client)
                planned.append((number, list(step.loss_scales), digest(batches)))
            for _, taken in ranks[broadcast.TP * group :][: broadcast.TP]:
                assert taken == planned
    assert ranks[0][1] != ranks[2][1]
