"""Real training on real text, every method in one run: tokens per second and what they are worth.

A small GPT is trained with DistributedDataParallel on padded batches, for one epoch of the same
samples, from the same initial weights, with the same optimizer. The methods take turns, and each
repeat begins with another of them; each measurement is an epoch in fresh processes, and each repeat
has its own seed.

    fixed                   torch's DataLoader and DistributedSampler
    group-by-length         Hugging Face's sampler as its Trainer uses it. It needs all lengths
                            in advance, and reads through the data to find them
    odb                     the released online-dynamic-batching, as its README shows
    even                    evenstep

All methods have the same memory: no micro-batch may have more than --max-tokens padded tokens.
Methods with a fixed number of samples must leave room for the longest, and accumulate several
micro-batches to a step, without exchanging gradients in between, to make about as many steps as
Even does. With about equally many optimizer steps of the same learning rate, losses after the same
samples can be compared. The learning rate follows the samples done. ODB buffers 256 samples;
evenstep sizes its windows by itself.

    tokens/s      real tokens, from asking for the first batch to the end of the last step: the
                  start of processes and the pass over the lengths are inside
    CPU tokens/s  if each step took the processor time of its slowest rank's forward and backward
                  pass, and nothing else took any: what to compare on a busy machine
    imbalance     sum over steps of the slowest rank's processor time, over the sum of the mean
    loss          held out, mean over its tokens; compared with Even's of the same repeat
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import Subset

import evenstep
from benchmarks.lib import ranks
from benchmarks.lib.methods import METHODS, Setting
from benchmarks.lib.report import Spread, Table, parser, progress, show, spreads
from benchmarks.lib.train import Records, calibrate, epoch
from evenstep.cost import Cost, fit
from evenstep.plan.update_size import UpdateSize
from evenstep.plan.value_checks import AUTO
from evenstep.tools.simulate import deal, simulate
from evenstep_demos.models import PaddedGPT
from evenstep_demos.text.corpus import read_parquet, read_standard_library
from evenstep_demos.text.prepared_text import Task, prepare

MODEL = {"layers": 2, "hidden_size": 64, "heads": 4, "vocab_size": 2048}
RANKS = 2
MAX_LENGTH = 1024
ODB_BUFFER = 256  # samples
CALIBRATIONS = 3
BASE = "even"
RATES = ("tokens_per_s", "cpu_tokens_per_s")
WORKERS = 1  # of a rank


def choose(task: Task, options: argparse.Namespace, cost: Cost) -> Setting:
    """The setting in which fixed sizes make as many steps as `Even` does of these lengths."""
    lengths = task.lengths
    shards = deal(len(lengths), RANKS, options.seed)
    policy = evenstep.Even(max_tokens=options.max_tokens, cost=cost)
    size = UpdateSize.of(policy, AUTO, ranks=RANKS, lengths=lengths)
    even = simulate(
        size.policy,
        [lengths[shard] for shard in shards],
        accumulate=size.accumulate,
        seed=options.seed,
        identities=shards,
    )
    rows = max(1, options.max_tokens // int(lengths.max()))
    return Setting(
        max_tokens=options.max_tokens,
        rows=rows,
        steps=-(-even.steps // size.accumulate),
        odb_buffer=ODB_BUFFER,
        workers=WORKERS,
        cost=cost,
    )


def figures(ranks: list[Records]) -> dict[str, float]:
    """Of one epoch, from the records of its ranks."""
    processor = np.array([rank.processor for rank in ranks])  # [ranks, steps]
    tokens = sum(sum(rank.tokens) for rank in ranks)
    samples = sum(sum(rank.samples) for rank in ranks)
    slowest = float(processor.max(axis=0).sum())
    return {
        "tokens_per_s": tokens / max(rank.seconds for rank in ranks),
        "cpu_tokens_per_s": tokens / slowest,
        "imbalance": slowest / float(processor.mean(axis=0).sum()),
        "padding": 1 - tokens / sum(sum(rank.padded) for rank in ranks),
        "steps": float(processor.shape[1]),
        "samples": float(samples),
        "loss": ranks[0].loss,
    }


def measure(
    task: Task, setting: Setting, options: argparse.Namespace
) -> dict[str, list[dict[str, float]]]:
    """All methods, in turn: method -> figures of its epochs."""
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in options.methods}
    for repeat in range(options.repeats):
        first = repeat % len(options.methods)
        for name in options.methods[first:] + options.methods[:first]:
            progress(f"{name}, {repeat + 1}/{options.repeats}")
            records = ranks.run(epoch, RANKS, task, name, setting, options.seed + repeat)
            taken = figures(records)
            trained, count = int(taken["samples"]), len(task.lengths)
            if trained != count:
                sys.exit(f"{name} trained on {trained:,} samples, not {count:,}")
            runs[name].append(taken)
    return runs


def table_of(runs: dict[str, list[dict[str, float]]]) -> Table:
    """Medians, with spread, and ratios to `Even`'s epoch of the same repeat."""
    rows = []
    for name, taken in runs.items():
        own = spreads(taken)
        pairs = list(zip(runs.get(BASE, ()), taken))
        row = [name]
        for key in RATES:
            ratios = [even[key] / run[key] for even, run in pairs]
            row += [f"{own[key].median:,.0f}", Spread.of(ratios).text(2) if pairs else ""]
        steps = own["steps"].median
        row += [f"{steps:,.0f}", f"{own['samples'].median / steps:.1f}"]
        row += [f"{own['padding'].median:.1%}", f"{own['imbalance'].median:.3f}"]
        above = [run["loss"] - even["loss"] for even, run in pairs]
        rows.append([*row, own["loss"].text(3), Spread.of(above).text(3) if above else ""])
    columns = ["method", "tokens/s", "even to this", "CPU tokens/s", "even to this by CPU"]
    columns += ["steps", "samples/step", "padding", "imbalance", "loss", "above even's"]
    return Table(columns, rows, "median (p10-p90)")


def _model(seed: int) -> PaddedGPT:
    torch.manual_seed(seed)
    return PaddedGPT(**MODEL)


def whole(task: Task, setting: Setting) -> Task:
    """As many samples as make whole micro-batches of fixed size, so that each is trained on once
    by every method."""
    count, samples = RANKS * setting.rows, len(task.lengths)
    if samples < count:
        sys.exit(f"{samples} samples make no micro-batch of {count}: give more text")
    return first(task, samples // count * count)


def first(task: Task, count: int) -> Task:
    """With the first samples alone, at most `count`."""
    count = min(count, len(task.lengths))
    few = Subset(task.training, range(count))
    return replace(task, training=few, lengths=task.lengths[:count])


def main() -> None:
    arguments = parser(
        __doc__ or "",
        "python -m benchmarks.loader.training --data text.parquet --repeats 5",
        repeats=3,
    )
    arguments.add_argument("--data", type=Path, help="Parquet file with a column `text`")
    arguments.add_argument("--samples", type=int, default=1800)
    arguments.add_argument("--max-tokens", type=int, default=2048, help="of a micro-batch, padded")
    arguments.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS))
    options = arguments.parse_args()
    progress("text")
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    if options.data is None:
        corpus = read_standard_library(options.seed)
    else:
        corpus = read_parquet(options.data, "text", options.seed)
    task, _ = prepare(corpus, MAX_LENGTH, MODEL["vocab_size"], ranks=RANKS, model=_model)
    task = first(task, options.samples)
    progress("timing groups")
    given = (options.max_tokens, MODEL["vocab_size"], CALIBRATIONS)
    everybody = ranks.run(calibrate, RANKS, task, *given)
    timed = [
        (samples, length, statistics.mean(rank[number][2] for rank in everybody))
        for number, (samples, length, _) in enumerate(everybody[0])
    ]
    samples, lengths, seconds = zip(*timed)
    setting = choose(task, options, fit(lengths, seconds, samples=samples))
    task = whole(task, setting)
    show(table_of(measure(task, setting, options)), as_json=options.json)


if __name__ == "__main__":
    main()
