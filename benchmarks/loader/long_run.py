"""A long run of the loader on two ranks: does memory grow, do files stay open, does it slow?

Samples are a few tokens each, so that what is measured is the loader. Every epoch has 100,000
steps. As a trainer would, each rank writes a state every 1,000 steps. Every `--resume-every` steps
it closes its loader and goes on with a new one, from the state.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import torch
import torch.distributed as dist
from torch.utils.data import Dataset

import evenstep
from benchmarks.lib.endurance import Looks, Watcher
from benchmarks.lib.report import parser, show
from evenstep_demos.ranks import run_ranks

RANKS = 2
SAVE = 1_000
LONGEST, MAX_TOKENS = 64, 128
SAMPLES = 720_000  # of an epoch of 100,000 steps
LOOKS = 200


class Small(Dataset[dict[str, torch.Tensor]]):
    """Samples of 1 to `LONGEST` tokens."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._tokens = torch.arange(LONGEST)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self._tokens[: 1 + index * 37 % LONGEST].clone()}


def make(workers: int) -> evenstep.DataLoader:
    return evenstep.DataLoader(
        Small(SAMPLES),
        policy=evenstep.Even(max_tokens=MAX_TOKENS),
        shuffle=True,
        num_workers=workers,
    )


def train(
    send: Callable[[Any], None],
    steps: int,
    workers: int,
    resume: int,
    folder: Path,
    watcher: Watcher,
) -> None:
    torch.set_num_threads(1)
    loader, done, every = make(workers), 0, steps // LOOKS
    path = folder / f"{dist.get_rank()}.json"
    while done < steps:
        for _ in loader.steps():
            done += 1
            if done % SAVE == 0:
                path.write_text(json.dumps(loader.state_dict()))
            if done % every == every // 2 and dist.get_rank() == 0:
                send(watcher.look(done))
            if done % resume == 0 or done == steps:
                break
        if done % resume == 0:
            loader.close()
            loader = make(workers)
            loader.load_state_dict(json.loads(path.read_text()))
    loader.close()


def role(process: psutil.Process, depth: int) -> str:
    if "resource_tracker" in " ".join(process.cmdline()):
        return ""
    return {1: "trainers", 2: "batchers", 3: "workers"}.get(depth, "")


def main() -> None:
    example = "python -m benchmarks.loader.long_run --steps 1000000"
    arguments = parser(__doc__ or "", example, repeats=1)
    arguments.add_argument("--steps", type=int, default=100_000)
    arguments.add_argument("--workers", type=int, default=1, help="worker processes of each rank")
    arguments.add_argument(
        "--resume-every", type=int, default=50_000, help=f"steps; a multiple of {SAVE:,}"
    )
    options = arguments.parse_args()
    if options.resume_every % SAVE:
        arguments.error(f"--resume-every must be a multiple of {SAVE:,}, when states are saved")
    with tempfile.TemporaryDirectory() as kept, tempfile.TemporaryDirectory() as temporary:
        os.environ["TMPDIR"] = tempfile.tempdir = temporary
        watcher, looks = Watcher(Path(temporary), role), Looks()
        job = (options.steps, options.workers, options.resume_every, Path(kept), watcher)
        with suppress(KeyboardInterrupt):  # shows what there is
            run_ranks(train, RANKS, job, looks.take)
        show(*looks.tables(), as_json=options.json)
        print(f"files left: {watcher.left()}", file=sys.stderr)


if __name__ == "__main__":
    from benchmarks.loader import long_run as this

    this.main()
