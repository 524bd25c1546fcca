"""Memory and speed of pixels that are made once their group is planned, beside those made before.

Documents with images of real sizes, as Qwen2-VL's processor takes them with its default limits: up
to 1,280 tokens, and 24 MB of pixels, for an image. A collate function makes tokens, labels and
pixels of them, as a trainer's does, and `evenstep.DataLoader` runs it in its workers. Groups are
formed by `Even`. The files are JPEGs of the sizes in the parquet file, made once, in a folder that
is removed at the end; tokens are bytes, so that nothing is downloaded.

    late        lengths from the headers; images decoded and processed once their group is planned
    at once     each sample whole, in the workers, before it is planned; windows of as many samples
                as `buffer_bytes` allows

Each measurement is one pass in a fresh process; cases alternate. The rate is that of all samples,
from before the loader is built. Memory is the largest sum of PSS of the process and its children,
read five times a second, less that of the process before it builds the loader. CPU time is of all
of them, imports included, and what to compare on a busy machine.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from PIL import Image
from torch.utils.data import Dataset

import evenstep
from benchmarks.lib.report import Table, in_turn, parser, progress, show, spreads
from benchmarks.lib.usage import memory

DATA = Path("../shared/data/mm_interleaved_docs.parquet")
MOST_IMAGES, LETTERS = 4, 2000
CASES = {"late": None, "at once": False}
MAX_TOKENS = 16_384
FIGURES = {
    "memory": ("memory, MiB", 0),
    "rate": ("samples/s", 1),
    "cpu": ("CPU ms/sample", 0),
}


def picture(width: int, height: int, seed: int) -> Image.Image:
    """Smooth, with some noise: as a JPEG about as large as a photograph."""
    random = np.random.default_rng(seed)
    across, down = np.linspace(0, 9, width), np.linspace(0, 9, height)[:, None]
    waves = np.stack([np.sin(across * (1 + c) + down + seed) for c in range(3)], -1)
    noise = random.integers(-12, 13, (height, width, 1))
    return Image.fromarray((128 + 90 * waves + noise).clip(0, 255).astype(np.uint8))


def make_files(folder: Path, data: Path, samples: int, seed: int) -> list[dict[str, Any]]:
    """Rows (text, paths of images) of documents drawn at random, and their files."""
    table = pq.read_table(data, columns=["text", "image_w", "image_h"]).to_pylist()
    drawn = np.random.default_rng(seed).choice(len(table), samples, replace=False).tolist()
    rows = []
    for number, place in enumerate(drawn):
        document, paths = table[place], []
        for width, height in zip(document["image_w"], document["image_h"]):
            if len(paths) < MOST_IMAGES and max(width, height) < 150 * min(width, height):
                paths.append(str(folder / f"{number}-{len(paths)}.jpg"))
                picture(width, height, number).save(paths[-1], quality=85)
        rows.append({"text": document["text"][:LETTERS], "paths": paths})
    return rows


class Documents(Dataset[dict[str, Any]]):
    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        row = self._rows[index]
        return {"text": row["text"], "images": [Image.open(path) for path in row["paths"]]}


class Collate:
    """As trainers do it: tokens and pixels of all rows, and labels for their text."""

    def __init__(self) -> None:
        from examples.tiny_qwen import processor

        self.processor = processor(patch=14, max_pixels=1280 * 28 * 28)

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        image = "<|vision_start|><|image_pad|><|vision_end|>"
        text = [image * len(row["images"]) + row["text"] for row in rows]
        images = [each for row in rows for each in row["images"]] or None
        batch = dict(self.processor(text=text, images=images, padding=True, return_tensors="pt"))
        batch["labels"] = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
        return batch


class Watch(threading.Thread):
    """The most memory of this process and its children."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.before = self.most = memory()
        self.over = threading.Event()

    def run(self) -> None:
        while not self.over.wait(0.2):
            self.most = max(self.most, memory())


def measure(case: str, rows: list[dict[str, Any]], workers: int) -> dict[str, float]:
    """One pass in this process."""
    collate_fn = evenstep.PreparingCollator(collate_fn=Collate(), late=CASES[case])
    watch = Watch()
    watch.start()
    begin = time.monotonic()
    loader = evenstep.DataLoader(
        Documents(rows),
        policy=evenstep.Even(MAX_TOKENS),
        collate_fn=collate_fn,
        shuffle=True,
        num_workers=workers,
        memory=evenstep.Memory(prefetch=2),
    )
    seen = sum(len(step.indices or ()) for _, step in loader.steps())
    seconds = time.monotonic() - begin
    assert seen == len(rows)
    assert loader.learned is not None
    assert loader.learned.collate is not None
    assert bool(loader.learned.collate["late"]) is (case == "late")
    watch.over.set()
    watch.join()
    loader.close()
    cpu = 1000 * sum(os.times()[:4]) / seen  # children's included
    most = (watch.most - watch.before) / 2**20
    return {"memory": most, "rate": seen / seconds, "cpu": cpu}


def main() -> None:
    options = parser(__doc__ or "", "python -m benchmarks.loader.late_images", repeats=3)
    options.add_argument(
        "--data", type=Path, default=DATA, help="parquet file with text, image_w and image_h"
    )
    options.add_argument("--samples", type=int, default=160)
    options.add_argument("--workers", type=int, default=2)
    options.add_argument("--one", nargs=3, help=argparse.SUPPRESS)  # case, workers, rows
    chosen = options.parse_args()
    if chosen.one:
        case, workers, path = chosen.one
        rows = json.loads(Path(path).read_text())
        print(json.dumps(measure(case, rows, int(workers))))
        return
    if not chosen.data.exists():
        print(f"there is no {chosen.data}: skipped; pass --data", file=sys.stderr)
        return
    with tempfile.TemporaryDirectory() as name:
        progress(f"making images of {chosen.samples} documents")
        rows = make_files(Path(name), chosen.data, chosen.samples, chosen.seed)
        listed = Path(name) / "rows.json"
        listed.write_text(json.dumps(rows))
        files = [Path(path).stat().st_size for row in rows for path in row["paths"]]

        def run(case: str) -> Any:
            command = [sys.executable, "-m", "benchmarks.loader.late_images"]
            command += ["--one", case, str(chosen.workers), str(listed)]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            return json.loads(done.stdout.splitlines()[-1])

        runs = in_turn(CASES, chosen.repeats, run)
    rows_found = []
    for case, found in runs.items():
        each = spreads(found)
        cells = [each[name].text(digits) for name, (_, digits) in FIGURES.items()]
        rows_found.append([case, *cells])
    head = ["pixels are made", *(title for title, _ in FIGURES.values())]
    mean = sum(files) / len(files) / 1000
    title = f"{len(rows)} documents, {len(files)} images, JPEGs of {mean:.0f} KB on average"
    show(Table(head, rows_found, title), as_json=chosen.json)


if __name__ == "__main__":
    main()
