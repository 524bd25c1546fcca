"""A training on the CPU for `evenstep tune` to run, with faults at chosen values of max_tokens.

Arguments: FOLDER MAX_TOKENS [FAULT=VALUE ...]; a fault befalls that value, before its fourth step.
Writes FOLDER/VALUE.counts: the samples of each step that it trained, by its own count, a line each.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import torch

import evenstep


class Numbers(torch.utils.data.Dataset):
    """Lengths from 5 to 64, the longest at index 0."""

    def __len__(self) -> int:
        return 2000

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        length = 64 if index == 0 else 5 + index * 37 % 59
        return {"input_ids": torch.arange(length)}


def main() -> None:
    folder, value = Path(sys.argv[1]), sys.argv[2]
    faults = dict(word.split("=") for word in sys.argv[3:])
    here = {name for name, where in faults.items() if where == value}
    if "hang" in here:
        # A stubborn process, and a child of it in a session of its own, as launchers make them.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        ignore = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"
        child = subprocess.Popen([sys.executable, "-c", ignore], start_new_session=True)
        (folder / "hanging").write_text(str(child.pid))
    loader = evenstep.DataLoader(
        Numbers(),
        policy=evenstep.TokenBudget(int(value)),
        memory=evenstep.Memory(buffer_size=64),
    )
    counts = (folder / f"{value}.counts").open("w", buffering=1)
    weight = torch.nn.Parameter(torch.zeros(64))
    for batch, step in loader.steps():
        if step.step == 3:
            misbehave(here)
        (weight[batch["input_ids"]] ** 2).sum().backward()
        print(len(batch["input_ids"]), file=counts)


def misbehave(here: set[str]) -> None:
    if "memory" in here:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")
    if "hang" in here:
        time.sleep(600)


if __name__ == "__main__":
    main()
