"""Runs that lose time in one way each, drawn by ``evenstep report``: the pictures of
docs/diagnose.md.

    python -m benchmarks.loader.diseases            # writes docs/images/diagnose-*.png

Real ranks under DistributedDataParallel, with real step logs. The model sleeps as long as a device
would compute, so that other work on this machine does not show.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.nn.parallel import DistributedDataParallel

import evenstep
from benchmarks.lib.ranks import run
from evenstep.cli.app import run as evenstep_command
from evenstep.cost import FittedCost

RANKS, SAMPLES, STEPS = 2, 4_000, 160
COST = FittedCost(per_group=5e-3, per_token=1.5e-5, per_pair=1.5e-5 / 3_000)
"""Seconds of a group."""
POLICIES: dict[str, evenstep.Policy] = {
    "healthy": evenstep.Even(4_096, cost=COST),
    "padding": evenstep.FixedBatch(8, cost=COST),
    "imbalance": evenstep.FixedBatch(12, cost=COST, packed=True),
    "data": evenstep.Even(4_096, cost=COST),
    "slow-rank": evenstep.Even(4_096, cost=COST),
}
SLOW_SAMPLE = 0.015  # seconds
SLOW, BEGINS, FACTOR = 1, 20, 2.0


class Texts(torch.utils.data.Dataset[Any]):
    def __init__(self, seconds: float) -> None:
        self.lengths = np.exp(np.random.default_rng(0).normal(5.3, 1.0, SAMPLES)).clip(8, 4_096)
        self.seconds = seconds

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> dict[str, Any]:
        time.sleep(self.seconds)
        return {"input_ids": torch.zeros(int(self.lengths[index]), dtype=torch.int64)}


class Device(torch.nn.Linear):
    """Takes so many seconds for a step."""

    def forward(self, seconds: float) -> torch.Tensor:
        time.sleep(seconds)
        return super().forward(torch.ones(1, 1)).sum()


def train(name: str, log: str) -> None:
    loader = evenstep.DataLoader(
        Texts(SLOW_SAMPLE if name == "data" else 0.0),
        policy=POLICIES[name],
        shuffle=True,
        memory=evenstep.Memory(buffer_size=256),  # short rounds, as the runs are short
        step_log=log,
    )
    model = Device(1, 1)
    trained = DistributedDataParallel(model)
    loader.watch(model)
    for _, step in loader.steps():
        slow = name == "slow-rank" and step.rank == SLOW and step.step >= BEGINS
        trained(step.cost * (FACTOR if slow else 1.0)).backward()
        if step.step == STEPS:
            break
    loader.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--out", type=Path, default=Path("docs/images"))
    parser.add_argument("--only", choices=list(POLICIES))
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for name in [given.only] if given.only else POLICIES:
            log = Path(folder) / f"{name}.jsonl"
            run(train, RANKS, name, str(log))
            picture = given.out / f"diagnose-{name}.png"
            evenstep_command(["report", str(log), "--plot", str(picture)])
            Image.open(picture).quantize(24).save(picture, optimize=True)


if __name__ == "__main__":
    main()
