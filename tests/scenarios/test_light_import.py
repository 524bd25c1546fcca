"""Importing evenstep costs next to nothing; what is heavy is imported where it is used."""

from __future__ import annotations

import subprocess
import sys

HEAVY = (
    "PIL",
    "accelerate",
    "hypothesis",
    "lightning",
    "matplotlib",
    "multiprocessing",
    "numpy",
    "pandas",
    "pyarrow",
    "pytest",
    "ray",
    "rich",
    "scipy",
    "tokenizers",
    "torch",
    "transformers",
    "typer",
)


def printed(script: str) -> list[str]:
    ran = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    return ran.stdout.split()


def test_importing_evenstep_loads_not_even_numpy() -> None:
    assert printed(f"import sys, evenstep; print(*[m for m in {HEAVY} if m in sys.modules])") == []


EVERYTHING = f"""
import multiprocessing, numpy, sys, torch
before = set(sys.modules)
import evenstep
[getattr(evenstep, name) for name in evenstep.__all__]
print(*[m for m in {HEAVY} if m in set(sys.modules) - before])
"""


def test_using_it_loads_nothing_but_what_numpy_and_torch_bring() -> None:
    assert printed(EVERYTHING) == []


ABSENT = sorted(
    {*HEAVY, "datasets", "fsspec", "numba", "psutil", "torchvision", "zmq"}
    - {"multiprocessing", "numpy", "torch"}
)
CORE_ALONE = f"""
import sys
sys.modules.update(dict.fromkeys({ABSENT}))
import torch, evenstep

class Data(torch.utils.data.Dataset):
    def __len__(self): return 60
    def __getitem__(self, i): return {{"input_ids": torch.arange(5 + i)}}

for policy in (evenstep.Even(256), evenstep.Even(256, packed=True)):
    loader = evenstep.DataLoader(Data(), policy=policy, shuffle=True, num_workers=0)
    print(sum(len(step.indices) for _, step in loader.steps()))
"""


def test_numpy_and_torch_are_enough_for_a_loader() -> None:
    assert printed(CORE_ALONE) == ["60", "60"]
