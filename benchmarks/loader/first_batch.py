"""Seconds from the construction of a loader to its first batch, beside torch's DataLoader.

    python -m benchmarks.loader.first_batch --repeats 5

Each time in a process of its own, once its imports are done. torch's loader makes batches of 8 rows
with the same collate function.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

import evenstep

WORDS = [f"word{number}" for number in range(2000)]


class Text(Dataset):  # type: ignore[type-arg]
    """Rows of text, which the collate function makes tokens of."""

    seconds = 0.0

    def __len__(self) -> int:
        return 20_000

    def __getitem__(self, index: int) -> dict[str, Any]:
        time.sleep(self.seconds)
        return {"text": " ".join(WORDS[index % 1000 : index % 1000 + 20 + index % 400])}


class Slow(Text):
    seconds = 0.05


class Tokens(Text):
    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"input_ids": [1] * (20 + index % 400)}


class SlowTokens(Tokens):
    def __getitem__(self, index: int) -> dict[str, Any]:
        time.sleep(0.05)
        return super().__getitem__(index)


class Images(Dataset):  # type: ignore[type-arg]
    def __len__(self) -> int:
        return 20_000

    def __getitem__(self, index: int) -> dict[str, Any]:
        size = 64 + 32 * (index % 8)
        pixels = torch.rand(3, size, size)
        small = torch.nn.functional.interpolate(pixels[None], size=(224, 224))[0]
        return {"text": "a " * (10 + index % 90), "pixel_values": small}


def collate(rows: list[dict[str, Any]]) -> dict[str, Any]:
    texts = [torch.tensor([len(word) for word in row["text"].split()]) for row in rows]
    ids = torch.nn.utils.rnn.pad_sequence(texts, batch_first=True)
    batch = {"input_ids": ids, "attention_mask": (ids > 0).long(), "labels": ids}
    batch["labels"] = ids.masked_fill(ids == 0, -100)
    if "pixel_values" in rows[0]:
        batch["pixel_values"] = torch.stack([row["pixel_values"] for row in rows])
    return batch


UPDATE = {"update_tokens": 16_000}
CASES: dict[str, tuple[type, dict[str, Any], int]] = {
    "text, collate_fn": (Text, {"collate_fn": collate}, 4),
    "text, collate_fn, update_tokens": (Text, {"collate_fn": collate, **UPDATE}, 4),
    "tokens": (Tokens, {}, 4),
    "tokens, update_tokens": (Tokens, UPDATE, 4),
    "50 ms, collate_fn, update_tokens": (Slow, {"collate_fn": collate, **UPDATE}, 16),
    "50 ms, tokens, update_tokens": (SlowTokens, UPDATE, 16),
    "images, collate_fn, update_tokens": (Images, {"collate_fn": collate, **UPDATE}, 4),
}


def first(case: str, side: str) -> float:
    """Seconds to the first batch."""
    kind, options, workers = CASES[case]
    dataset = kind()
    begin = time.monotonic()
    make: Callable[[], Any]
    if side == "torch":
        theirs = options.get("collate_fn", evenstep.PadCollator())
        loader: Any = DataLoader(
            dataset, batch_size=8, shuffle=True, num_workers=workers, collate_fn=theirs
        )
        make = iter(loader).__next__
    else:
        policy = evenstep.Even(max_tokens=4096)
        loader = evenstep.DataLoader(
            dataset, policy=policy, shuffle=True, num_workers=workers, **options
        )
        make = loader.steps().__next__
    make()
    return time.monotonic() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--one", nargs=2, metavar=("CASE", "SIDE"), help="print one time")
    given = parser.parse_args()
    if given.one:
        print(first(*given.one))
        return
    for case in CASES:
        row = []
        for side in ("torch", "evenstep"):
            command = [sys.executable, "-W", "ignore", "-m", __spec__.name, "--one", case, side]
            times = sorted(
                float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
                for _ in range(given.repeats)
            )
            row.append(f"{side} {statistics.median(times):.2f} ({times[0]:.2f}-{times[-1]:.2f})")
        print(f"{case:36} {'   '.join(row)}", flush=True)


if __name__ == "__main__":
    main()
