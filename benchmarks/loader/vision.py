"""A small Qwen2-VL trained on images and text, every method in one run, from raw rows on.

Each ``<image>`` in a text of the Parquet file stands for a picture, of which the columns
``image_w`` and ``image_h`` have the size. It makes one row with the text up to the next: the model
sees the picture, and learns the text. Pictures are made up, of these sizes; the processor makes
large ones smaller, as processors do. Text beyond the limit is cut off. Without --data, rows are
those of ``evenstep demo-vision``.

Rows are raw. The collate function makes tokens and pixels of them. It is given to torch's
DataLoader and to evenstep as it is. Of ODB and `group_by_length`, which look at ``input_ids``
before they collate, the dataset makes tokens and pixels of each row; the latter reads through it
for the lengths, then collates raw rows.

    even           Even with updates of several groups, as by default on few ranks
    even-one-group a step is one group of each rank
    even-packed    Even(packed=True): groups in one row each, without padding. On the CPU, attention
                   then computes all pairs of a row, those of different samples too
    data path      the loader alone, without a model: rows of all ranks per second, and processor
                   milliseconds of a row
    first batch    seconds from asking for an iterator; processes are forked
    memory         MiB (PSS) of a rank and its loader's processes, the most of a few looks, the
                   larger rank

For all else see `benchmarks.loader.training`.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from benchmarks.lib import ranks
from benchmarks.lib.methods import METHODS
from benchmarks.lib.report import Spread, as_dicts, in_turn, machine, progress, spreads
from benchmarks.lib.train import Job, calibrate, read
from benchmarks.loader.training import (
    CALIBRATIONS,
    choose,
    measure,
    require_packages,
    summary,
    tables,
    whole,
    write_json,
)
from evenstep.cost import VisionLanguageCost, fit
from evenstep.tools.report import text_table
from evenstep_demos.text.prepared_text import describe_lengths, train_tokenizer
from evenstep_demos.text.task import Task

DEFAULT = ["fixed", "group-by-length", "odb", "odb-full", "even", "even-one-group"]
VOCABULARY = 2048
LOOKS = 4
PATCH = 14
Row = tuple[int, int, str]
"""Width, height and text."""


class Pages(Dataset[dict[str, Any]]):
    """Raw rows: a made-up picture of a real size, and the text behind it."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        from PIL import Image

        width, height, text = self.rows[index]
        coarse = np.random.default_rng(index).integers(0, 256, (8, 8, 3), np.uint8)
        image = Image.fromarray(coarse).resize((width, height), Image.Resampling.BILINEAR)
        question = [{"type": "image"}, {"type": "text", "text": "Go on."}]
        answer = [{"type": "text", "text": text}]
        return {
            "images": [image],
            "messages": [
                {"role": "user", "content": question},
                {"role": "assistant", "content": answer},
            ],
        }


def read_rows(path: Path) -> list[Row]:
    """All pictures of the documents, with the text up to the next."""
    import pyarrow.parquet

    rows: list[Row] = []
    for document in pyarrow.parquet.read_table(
        path, columns=["text", "image_w", "image_h"]
    ).to_pylist():
        parts = [part.strip() for part in document["text"].split("<image>")[1:]]
        sizes = zip(document["image_w"], document["image_h"])
        rows += [(*size, part) for size, part in zip(sizes, parts) if part]
    return rows


def make_task(options: argparse.Namespace) -> tuple[Task, str]:
    from tokenizers import Tokenizer

    from evenstep_demos.vision.collate import Collate, processor, tokenizer
    from evenstep_demos.vision.crops import Crops

    total = options.samples + options.held_out
    if options.data is None:
        made, name = processor(), "crops of photographs of scikit-image"
        rows: Any = Crops(range(total))
        held_out, training = Crops(range(options.held_out)), Crops(range(options.held_out, total))
    else:
        found = read_rows(options.data)
        order = np.random.default_rng(options.seed).permutation(len(found))[:total].tolist()
        rows = [found[i] for i in order]
        held_out, training = rows[: options.held_out], rows[options.held_out :]
        trained = Tokenizer.from_str(train_tokenizer([row[2] for row in training], VOCABULARY))
        starts = [trained.encode(row[2]).ids[: options.text_tokens] for row in rows]
        rows = [(*row[:2], trained.decode(start)) for row, start in zip(rows, starts)]
        held_out, training = Pages(rows[: options.held_out]), Pages(rows[options.held_out :])
        pixels = options.image_tokens * (2 * PATCH) ** 2
        made = processor(tokenizer(trained), patch=PATCH, max_pixels=pixels)
        name = options.data.name
    model = partial(_model, made, options.width, options.layers)
    return Task.measured(training, held_out, collate=Collate(made), model=model), name


def _model(made: Any, width: int, layers: int, seed: int) -> torch.nn.Module:
    from evenstep_demos.vision.model import VisionLanguageModel

    torch.manual_seed(seed)
    return VisionLanguageModel(made, hidden_size=width, layers=layers)


def fitted_cost(job: Job, options: argparse.Namespace) -> VisionLanguageCost:
    """Of both parts of the model, timed here while all ranks compute."""
    progress("timing groups")
    parts = [
        ranks.run(calibrate, options.ranks, job, options.max_tokens, VOCABULARY, CALIBRATIONS),
        ranks.run(time_tower, options.ranks, job, 4 * options.image_tokens, CALIBRATIONS),
    ]
    fitted = []
    for everybody in parts:
        samples, lengths, _ = zip(*everybody[0])
        seconds = np.mean([[each[2] for each in rank] for rank in everybody], axis=0)
        fitted.append(fit(lengths, seconds, samples=samples))
    return VisionLanguageCost(language=fitted[0], vision=replace(fitted[1], per_group=0.0))


def time_tower(job: Job, most: int, repeats: int) -> list[tuple[int, int, float]]:
    """Times images of many sizes: (images, patches of each, seconds)."""
    model = job.task.model(0)
    tower = model.model.model.visual
    pixels = tower.patch_embed.proj.weight[0].numel()
    found = []
    for side in [n for n in (4, 8, 12, 16, 24, 32, 48) if n * n <= most]:
        images = max(1, most // side**2)
        grid = torch.tensor([[1, side, side]] * images)
        patches = torch.randn(images * side**2, pixels)
        best = float("inf")
        for _ in range(repeats + 1):
            begin = time.thread_time()
            tower(patches, grid).pooler_output.sum().backward()
            best = min(best, time.thread_time() - begin)
        found.append((images, side**2, best))
    return found


def of_data_path(job: Job, setting: Any, options: argparse.Namespace) -> dict[str, Any]:
    """Method -> figures of its loader alone."""

    def run(name: str) -> dict[str, float]:
        both = ranks.run(read, options.ranks, job, name, setting, options.seed)
        samples = sum(sum(rank.samples) for rank in both)
        return {
            "samples_per_s": samples / max(rank.total for rank in both),
            "cpu_ms_per_sample": 1e3 * sum(rank.processor for rank in both) / samples,
            "first_batch_s": max(rank.start for rank in both),
        }

    taken = in_turn(options.methods, options.repeats, run)
    return {name: as_dicts(spreads(runs)) for name, runs in taken.items()}


def table_of_data_path(result: dict[str, Any], paths: dict[str, Any]) -> str:
    header = ["method", "samples/s", "CPU ms/sample", "first batch s", "memory MiB"]
    rows = [
        [
            name,
            Spread(*own["samples_per_s"].values()).text(0),
            Spread(*own["cpu_ms_per_sample"].values()).text(1),
            Spread(*own["first_batch_s"].values()).text(2),
            Spread(*result[name]["memory_mib"].values()).text(0),
        ]
        for name, own in paths.items()
    ]
    return text_table(header, rows, title="the data path alone, and memory in training")


def arguments() -> argparse.Namespace:
    result = argparse.ArgumentParser(
        description=__doc__,
        epilog="example: python -m benchmarks.loader.vision --data pages.parquet --repeats 5",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    result.add_argument("--data", type=Path, help="Parquet file: text, image_w, image_h")
    result.add_argument("--samples", type=int, default=1200)
    result.add_argument("--held-out", type=int, default=128, help="rows to evaluate on")
    result.add_argument("--text-tokens", type=int, default=256, help="of a row, at most")
    result.add_argument("--image-tokens", type=int, default=256, help="of a picture, at most")
    result.add_argument("--max-tokens", type=int, default=2048, help="of a micro-batch, padded")
    result.add_argument("--width", type=int, default=128, help="of the model")
    result.add_argument("--layers", type=int, default=2, help="of the language model")
    result.add_argument("--learning-rate", type=float, default=3e-3)
    result.add_argument("--odb-buffer", type=int, default=256)
    result.add_argument("--methods", nargs="+", choices=list(METHODS), default=DEFAULT)
    result.add_argument("--workers", type=int, default=1, help="per rank")
    result.add_argument("--ranks", type=int, default=2)
    result.add_argument("--repeats", type=int, default=3, help="epochs of each method")
    result.add_argument("--seed", type=int, default=0)
    result.add_argument("--json", type=Path, help="write all figures to this file")
    options = result.parse_args()
    options.device = "cpu"
    return options


def main() -> None:
    options = arguments()
    require_packages(options.methods)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    begin = time.perf_counter()
    progress("counting tokens")
    task, name = make_task(options)
    job = Job(task=task, device="cpu", learning_rate=options.learning_rate, looks=LOOKS)
    cost = fitted_cost(job, options)
    setting = choose(task, options, cost)
    task = whole(task, setting, options.ranks)
    job = replace(job, task=task)
    lengths = describe_lengths(task.lengths)
    facts = (
        f"{name}: {len(task.lengths):,} rows of {lengths['mean']:,.0f} tokens (median "
        f"{lengths['median']:,.0f}, longest {lengths['max']:,.0f}, coefficient of variation "
        f"{lengths['cv']:.2f}); {setting.max_tokens:,} padded tokens fit into memory, and so "
        f"{setting.rows} rows where their number is fixed; {setting.steps} steps\n"
        f"cost given to Even, timed here: {cost}"
    )
    progress("")
    print(facts, end="\n\n", flush=True)
    result = summary(measure(job, setting, options))
    paths = of_data_path(job, setting, options)
    print(f"{tables(result)}\n\n{table_of_data_path(result, paths)}")
    print(f"\n{time.perf_counter() - begin:,.0f} s; load of the machine {machine()['load_1min']}")
    write_json(options, facts=facts, setting=asdict(setting), methods=result, data_path=paths)


if __name__ == "__main__":
    main()
