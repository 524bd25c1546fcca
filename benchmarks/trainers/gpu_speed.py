"""What training gains on GPUs: `evenstep demo`'s comparison, with its model on a device.

Both runs train the same GPT on the same text, with fixed batches and with `Even`, in bf16, by as
many ranks as there are GPUs. The table is of wall-clock time; the losses are of held-out text.

    torchrun --nproc-per-node 8 -m benchmarks.trainers.gpu_speed --page docs/gpu.md
    torchrun --nproc-per-node 2 -m benchmarks.trainers.gpu_speed --device cpu --samples 400

Where there is no GPU, --device cuda says so and ends with code 0. `make gpu` runs it.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import Subset

from evenstep_demos.models import PaddedGPT
from evenstep_demos.text.budget import TrainingOptions, choose
from evenstep_demos.text.corpus import read_standard_library
from evenstep_demos.text.prepared_text import prepare
from evenstep_demos.text.result import figures_of_both
from evenstep_demos.text.task import Task
from evenstep_demos.text.train import train_both

VOCABULARY = 4096
BEGIN = "## Measured\n"


class OnDevice(torch.nn.Module):
    """Takes a batch and gives its loss on the CPU; computes on the device, in bf16."""

    def __init__(self, device: torch.device, hidden_size: int, layers: int, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.device = device
        model = PaddedGPT(
            vocab_size=VOCABULARY,
            hidden_size=hidden_size,
            layers=layers,
            heads=hidden_size // 32,
        )
        self.model = model.to(device)

    def forward(self, **batch: torch.Tensor) -> torch.Tensor:
        there = {key: value.to(self.device, non_blocking=True) for key, value in batch.items()}
        with torch.autocast(self.device.type, torch.bfloat16):
            loss: torch.Tensor = self.model(**there)
        return loss.float().cpu()


def options_of() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--samples", type=int, default=8000, help="documents to train on, at most")
    parser.add_argument("--max-tokens", type=int, default=8192, help="padded tokens of a batch")
    parser.add_argument("--hidden-size", type=int, default=512)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--page", type=Path, help='write the table under "## Measured" of a page')
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser.parse_args()


def main() -> None:
    options = options_of()
    rank = int(os.environ.get("RANK", "0"))
    if options.device == "cuda" and not torch.cuda.is_available():
        if rank == 0:
            print("not measured: torch finds no CUDA device; --device cpu tries it on the CPU")
        return
    if options.device == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
        dist.init_process_group("cpu:gloo,cuda:nccl")
    else:
        device = torch.device("cpu")
        dist.init_process_group("gloo")
    result = measured(options, device, dist.get_world_size())
    if rank == 0:
        print(json.dumps(result) if options.json else section(result))
        if options.page:
            before = options.page.read_text().split(BEGIN)[0]
            options.page.write_text(f"{before}{BEGIN}\n{section(result)}")
    dist.destroy_process_group()


def measured(options: argparse.Namespace, device: torch.device, ranks: int) -> dict[str, Any]:
    """Trains on all ranks, which must call it together."""
    demo = TrainingOptions(world_size=ranks, max_tokens=options.max_tokens, samples=options.samples)
    model = partial(OnDevice, device, options.hidden_size, options.layers)
    corpus = read_standard_library(demo.seed)
    task, _ = prepare(corpus, 2 * demo.max_tokens // 3, VOCABULARY, ranks=ranks, model=model)
    count = min(demo.samples, len(task.lengths)) // ranks * ranks
    task = cut(task, count)
    choice = choose(task.lengths, demo)
    trained = train_both(lambda line: None, demo.seed, choice, task)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    return {
        "device": name,
        "ranks": ranks,
        "torch": torch.__version__,
        "options": {"batch_size": choice.batch_size, "samples": count},
        **figures_of_both(trained),
    }


def cut(task: Task, count: int) -> Task:
    return replace(task, training=Subset(task.training, range(count)), lengths=task.lengths[:count])


def section(result: Mapping[str, Any]) -> str:
    """The table, for people."""
    options, loss = result["options"], result["loss_difference"]
    text = (
        f"{result['ranks']} x {result['device']}, torch {result['torch']}, bf16, "
        f"{options['samples']:,} documents, three runs of each.\n\n"
        "| | real tokens/s | padding | held-out loss |\n|---|---|---|---|\n"
    )
    names = {"fixed": f"fixed batches of {options['batch_size']}", "evenstep": "`Even`"}
    for run, name in names.items():
        one = result[run]
        text += (
            f"| {name} | {one['tokens_per_second']:,.0f} | {one['padding']:.1%} | "
            f"{one['held_out_loss']:.3f} |\n"
        )
    return text + (
        f"\n`Even` is {result['speedup']:.2f} times as fast. Its held-out loss less that of fixed "
        f"batches is {loss['mean']:+.3f}, with a 95 % interval of {loss['low']:+.3f} to "
        f"{loss['high']:+.3f}.\n"
    )


if __name__ == "__main__":
    main()
