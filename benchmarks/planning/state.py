"""Time of `DataLoader.state_dict` after every step of an epoch, and the size of a state."""

from __future__ import annotations

import json
import time

import torch
from torch.utils.data import Dataset

import evenstep
from benchmarks.lib.report import Spread, Table, parser, progress, show
from evenstep.plan.value_checks import AUTO
from evenstep.tools.simulate import sample_lengths

BUFFERS = (AUTO, 256, 1024, 4096)


class Documents(Dataset):  # type: ignore[type-arg]
    """Documents with lengths of the `ultrachat` distribution."""

    def __init__(self, count: int, seed: int) -> None:
        self.lengths = sample_lengths("ultrachat", count, seed=seed)

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": torch.ones(int(self.lengths[index]), dtype=torch.int64)}


def measure(buffer: int | str, samples: int, seed: int) -> list[str]:
    progress(f"buffer {buffer}")
    loader = evenstep.DataLoader(
        Documents(samples, seed),
        policy=evenstep.Even(max_tokens=12_288),
        shuffle=True,
        num_workers=1,
        memory=evenstep.Memory(buffer_size=buffer),
    )
    milliseconds, sizes = [], []
    for _ in loader.steps():
        begin = time.perf_counter()
        state = loader.state_dict()
        milliseconds.append(1e3 * (time.perf_counter() - begin))
        sizes.append(len(json.dumps(state)))
    loader.close()
    row = [f"{buffer}", f"{len(sizes)}", f"{max(sizes):,}", Spread.of(milliseconds).text(2)]
    return [*row, f"{max(milliseconds):.2f}"]


def main() -> None:
    options = parser(
        __doc__ or "", "python -m benchmarks.planning.state --json", repeats=1
    ).parse_args()
    rows = [
        measure(buffer, 8 * options.repeats * (1024 if buffer == AUTO else buffer), options.seed)
        for buffer in BUFFERS
    ]
    columns = ["buffer", "states", "bytes at most", "ms", "ms at most"]
    show(Table(columns, rows), as_json=options.json)


if __name__ == "__main__":
    main()
