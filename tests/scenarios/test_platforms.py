"""What is not there: optional packages; and Linux, whose memfd, /proc and fork others lack."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from ranks import GRACE, Job

from gloo_lines import without_gloo

HERE = Path(__file__).parent
LIMIT = 120.0  # seconds, on a machine with much else to do


HEAVY = {
    *("PIL", "accelerate", "hypothesis", "lightning", "matplotlib", "pandas", "pyarrow", "pytest"),
    *("ray", "rich", "scipy", "tokenizers", "transformers", "typer"),
}
ABSENT = {*HEAVY, "datasets", "fsspec", "numba", "psutil", "torchvision", "zmq"}
SCRIPT = f"""
import sys
import evenstep
print({HEAVY | {"multiprocessing", "numpy", "torch"}} & {{*sys.modules}})
import multiprocessing, numpy, torch
before = {{*sys.modules}}
print({HEAVY} & before)
[getattr(evenstep, name) for name in evenstep.__all__]
print({HEAVY} & {{*sys.modules}})
sys.modules.update(dict.fromkeys({ABSENT} - before))

class Data(torch.utils.data.Dataset):
    def __len__(self): return 60
    def __getitem__(self, i): return {{"input_ids": torch.arange(5 + i)}}

for policy in (evenstep.Even(256), evenstep.Even(256, packed=True)):
    loader = evenstep.DataLoader(Data(), policy=policy, shuffle=True, num_workers=0)
    print(sum(len(step.indices) for _, step in loader.steps()))
"""


def test_importing_costs_nothing_and_numpy_and_torch_are_enough_for_a_loader() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True, timeout=120
    )
    assert ran.stdout.split("\n") == ["set()", "set()", "set()", "60", "60", ""]


@pytest.mark.slow
def test_two_ranks_train_without_anything_that_only_linux_has(tmp_path: Path) -> None:
    paths = [str(HERE.parent), str(HERE), os.environ.get("PYTHONPATH", "")]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    ranks = [
        subprocess.Popen(
            [sys.executable, str(HERE / "spawned_rank.py"), str(rank), str(tmp_path / "store")],
            stdout=subprocess.PIPE,
            env=environ,
            start_new_session=True,
        )
        for rank in range(2)
    ]
    try:
        said: list[dict[str, Any]] = []
        for rank in reversed(ranks):  # the one that dies first is to be missed by the other
            output, _ = rank.communicate(timeout=LIMIT)
            said.insert(0, json.loads(without_gloo(output.decode())))
    finally:
        deadline = time.monotonic() + GRACE
        while left := [pid for rank in ranks for pid in Job.session(rank.pid)]:
            if time.monotonic() > deadline:
                for pid in left:
                    psutil.Process(pid).kill()
                raise AssertionError(f"left behind: {left}")
            time.sleep(0.1)

    assert [one["method"] for one in said] == ["spawn", "spawn"]
    for one in said:
        assert one["batches"] == one["batches of threads"]
        assert one["killed batcher"].startswith(("LoaderDiedError", "PeerError"))
        assert one["children"] == 0
        assert one["lambda"].startswith("ConfigurationError: the dataset, or a function")
        assert "start method 'spawn' on darwin needs" in one["lambda"]
    assert any("killed by SIGKILL" in one["killed batcher"] for one in said)
    indices = [index for one in said for *members, _ in one["batches"] for index in members]
    assert sorted(indices) == list(range(80))
    assert len({len(one["batches"]) for one in said}) == 1
    assert said[0]["killed rank"].startswith("PeerError: ")
    assert "rank 0 (" not in said[0]["killed rank"]
