"""A small Qwen2-VL trained on images and text, every method in one run, from raw rows on.

Rows are those of ``evenstep demo-vision``: crops of photographs, with questions and answers. The
collate function makes tokens and pixels of them. It is given to torch's DataLoader and to evenstep
as it is. Of ODB and `group_by_length`, which look at ``input_ids`` before they collate, the dataset
makes tokens and pixels of each row; the latter reads through it for the lengths, then collates raw
rows.

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
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from benchmarks.lib import ranks
from benchmarks.lib.methods import METHODS
from benchmarks.lib.report import Spread, as_dicts, in_turn, machine, progress, spreads
from benchmarks.lib.train import Job, read
from benchmarks.loader.training import (
    choose,
    measure,
    require_packages,
    summary,
    tables,
    whole,
    write_json,
)
from evenstep.tools.report import text_table
from evenstep_demos.text.prepared_text import describe_lengths
from evenstep_demos.text.task import Task

DEFAULT = ["fixed", "group-by-length", "odb", "odb-full", "even", "even-one-group"]
LOOKS = 4


def make_task(options: argparse.Namespace) -> Task:
    from evenstep_demos.vision.collate import Collate, processor
    from evenstep_demos.vision.crops import Crops
    from evenstep_demos.vision.model import cost

    collate = Collate(processor())
    total = options.held_out + options.samples
    return Task.measured(
        Crops(range(options.held_out, total)),
        Crops(range(options.held_out)),
        collate=collate,
        model=_model,
        cost=cost(len(collate.processor.tokenizer)),
    )


def _model(seed: int) -> torch.nn.Module:
    from evenstep_demos.vision.collate import processor
    from evenstep_demos.vision.model import VisionLanguageModel

    torch.manual_seed(seed)
    return VisionLanguageModel(processor())


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
        epilog="example: python -m benchmarks.loader.vision --samples 400 --repeats 5",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    result.add_argument("--samples", type=int, default=1200)
    result.add_argument("--held-out", type=int, default=128, help="rows to evaluate on")
    result.add_argument("--max-tokens", type=int, default=2048, help="of a micro-batch, padded")
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
    task = make_task(options)
    setting = choose(task, options, task.cost)
    task = whole(task, setting, options.ranks)
    job = Job(task=task, device="cpu", learning_rate=options.learning_rate, looks=LOOKS)
    lengths = describe_lengths(task.lengths)
    facts = (
        f"{len(task.lengths):,} rows of {lengths['mean']:,.0f} tokens (median "
        f"{lengths['median']:,.0f}, longest {lengths['max']:,.0f}, coefficient of variation "
        f"{lengths['cv']:.2f}); {setting.max_tokens:,} padded tokens fit into memory, and so "
        f"{setting.rows} rows where their number is fixed; {setting.steps} steps"
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
