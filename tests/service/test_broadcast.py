"""`broadcast_at` over a real process group: one rank of each group fetches, all get the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("zmq", reason="pyzmq is not installed")

from broadcast_rank import broadcast, digest

import evenstep.service as es

HERE = Path(__file__).parent


def test_four_ranks_of_which_two_fetch_get_what_the_planner_gave_them(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node=4", str(HERE / "broadcast_rank.py"), str(tmp_path)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=150, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr
    ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(4)]
    assert [said["clients"] for said in ranks] == [[0], [], [2], []]
    with es.start(broadcast.job_of(tmp_path), backend="local") as local:
        for group in range(broadcast.DP):
            client = local.client(DP=group, TP=0)
            planned = []
            for number in range(broadcast.STEPS):
                batches, step = next(client)
                tensors = [
                    {name: t for name, t in batch.items() if isinstance(t, torch.Tensor)}
                    for batch in batches
                ]
                planned.append([number, list(step.loss_scales), digest(tensors)])
            for peer in range(broadcast.TP):
                assert ranks[broadcast.TP * group + peer]["taken"] == planned
    assert ranks[0]["taken"] != ranks[2]["taken"]
