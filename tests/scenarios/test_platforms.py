"""Importing loads nothing heavy, and a loader needs none of the optional packages."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

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
