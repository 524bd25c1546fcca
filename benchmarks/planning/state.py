"""Time of `DataLoader.state_dict` after every step of an epoch, and the size of a state."""

from __future__ import annotations

import json
import time
from typing import Any

import torch
from torch.utils.data import Dataset

import evenstep
from benchmarks.lib.report import Spread, parser, print_json, progress
from evenstep.protocol.window_size import AUTO
from evenstep.tools.report import text_table
from evenstep.tools.simulate import sample_lengths


class Documents(Dataset):  # type: ignore[type-arg]
    """Documents with lengths of the `ultrachat` distribution."""

    def __init__(self, count: int, seed: int) -> None:
        self.lengths = sample_lengths("ultrachat", count, seed=seed)

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": torch.ones(int(self.lengths[index]), dtype=torch.int64)}


def measure(buffer: int | str, samples: int, seed: int) -> dict[str, Any]:
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
    return {
        "buffer": buffer,
        "states": len(sizes),
        "bytes_max": max(sizes),
        "ms": Spread.of(milliseconds),
        "ms_max": max(milliseconds),
    }


def main() -> None:
    arguments = parser(__doc__ or "", "python -m benchmarks.planning.state --json", repeats=1)
    arguments.add_argument("--buffers", nargs="+", default=[AUTO, "256", "1024", "4096"])
    options = arguments.parse_args()
    results = []
    for buffer in options.buffers:
        samples = 8 * options.repeats * (1024 if buffer == AUTO else int(buffer))
        size = buffer if buffer == AUTO else int(buffer)
        results.append(measure(size, samples, options.seed))
    if options.json:
        print_json({"states": [{**r, "ms": r["ms"].as_dict()} for r in results]})
        return
    rows = [
        [
            str(r["buffer"]),
            str(r["states"]),
            f"{r['bytes_max']:,}",
            r["ms"].text(2),
            f"{r['ms_max']:.2f}",
        ]
        for r in results
    ]
    print(text_table(["buffer", "states", "bytes at most", "ms", "ms at most"], rows))


if __name__ == "__main__":
    main()
