"""A long run of the loader on two ranks: does memory grow, do files stay open, does it slow?

Samples are a few tokens each, so that what is measured is the loader. Every epoch has 100,000
steps. As a trainer would, each rank writes a state every 1,000 steps. Every 50,000 steps it closes
its loader and goes on with a new one, from the state. A line has rank 0's trainer and all that it
has started, without what files back: how code is shared depends on what else the machine runs.
"""

from __future__ import annotations

import argparse
import json
import time
from contextlib import suppress
from pathlib import Path

import psutil
import torch
from torch.utils.data import Dataset

import evenstep
from evenstep_demos.ranks import run_ranks

RANKS, LOOKS = 2, 50
SAVE, RESUME = 1_000, 50_000
LONGEST, MAX_TOKENS = 64, 128
SAMPLES = 720_000  # of an epoch of 100,000 steps


class Small(Dataset[dict[str, torch.Tensor]]):
    """Samples of 1 to `LONGEST` tokens."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": torch.arange(1 + index * 37 % LONGEST)}


def train(steps: int) -> None:
    torch.set_num_threads(1)
    policy, state, done = evenstep.Even(max_tokens=MAX_TOKENS), "", 0
    while done < steps:
        loader = evenstep.DataLoader(Small(), policy=policy, shuffle=True, num_workers=1)
        if state:
            loader.load_state_dict(json.loads(state))
        while done < steps:
            for _ in loader.steps():
                done += 1
                if done % SAVE == 0:
                    state = json.dumps(loader.state_dict())
                if done % (steps // LOOKS) == 0 and torch.distributed.get_rank() == 0:
                    print(f"{done:,} steps, {time.process_time():.0f} s, {used()}", flush=True)
                if done % RESUME == 0 or done == steps:
                    break
            if done % RESUME == 0:
                break
        loader.close()


def used() -> str:
    memory = files = 0
    for process in (psutil.Process(), *psutil.Process().children(recursive=True)):
        with suppress(psutil.Error, OSError):
            files += process.num_fds()
            for line in Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines():
                if line.startswith(("Pss_Anon:", "Pss_Shmem:")):
                    memory += int(line.split()[1])
    return f"{memory / 1024:.1f} MiB, {files} open files"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100_000)
    run_ranks(train, RANKS, parser.parse_args().steps)


if __name__ == "__main__":
    from benchmarks.loader import long_run as this

    this.main()
