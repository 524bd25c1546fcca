"""Held-out loss of a small GPT after equal samples and updates, policy by policy.

What a step holds decides what it teaches. Steps of samples of like length, which policies that sort
make, are fast and learn worse than random batches; this benchmark says by how much, on your text.

A small GPT is trained on the CPU once for each policy and seed. For a seed all policies get the
same samples, each once, the same initial weights, the same number of updates and the same learning
rate in each; only the composition and the order of the steps differ. Steps are those of
--world-size ranks, made by the protocol that drives the loader; their gradient, that of the mean
over the tokens of all ranks, is added up in one process. A policy's token budget is chosen for each
seed so that it makes as many steps as the fixed batches.

    fixed           random batches of --per-step samples; every other loss is compared with theirs
    fixed-again     the same samples in another random order: what chance alone does
    odb             ODB's rule: groups of like length meet in a step
    token-budget    the same groups, dealt so that lengths mix within a step
    pool-sort       batches of samples of like length, as of LengthPoolSortDataset and
                    group_by_length
    even            evenstep's default policy, in updates of at least 8 groups on all ranks: those
                    that update_tokens= makes
    even-one-group  the same, one group of each rank in an update
    even-2 to even-64
                    updates of so many groups
    even-packed     without padding

    above fixed     held-out loss per token minus that of fixed batches of the same seed; mean and
                    standard error over seeds
    composition     variance of length within steps, each token counted, over that within random
                    steps of the same sizes: 1 is random, 0 is one length in every step
    cosine          of a step's gradient and that of all samples, at the weights which fixed batches
                    reach after a quarter of the updates; mean over 25 steps of the first seed

Finished runs are kept in --out, by all that decides them: call it again with more seeds or
policies, or after an interruption, and only what is missing is trained. Without --data, nothing is.
"""

from __future__ import annotations

import argparse
import os
import sys
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path

from benchmarks.learning.experiment import Experiment, noise_of, prepare_noise, run_of
from benchmarks.learning.plans import BASE, DEFAULT, POLICIES
from benchmarks.learning.summary import CorpusResult, table_of
from benchmarks.learning.text import read_text
from benchmarks.learning.train import Recipe, one_thread
from benchmarks.lib.report import show
from evenstep.errors import EvenstepError

_HELD_OUT = 512


def measure(experiments: list[Experiment], seeds: range, processes: int) -> list[CorpusResult]:
    """Trains what is not in the cache, and gathers all of it."""
    results = [CorpusResult(name=one.text.name) for one in experiments]
    cases = [
        (experiment, result, policy, seed)
        for seed in seeds
        for experiment, result in zip(experiments, results)
        for policy in experiment.policies
    ]
    context = get_context("spawn")
    total, done = len(cases) + sum(len(one.policies) + 1 for one in experiments), 0

    def advance(text: str) -> None:
        nonlocal done
        done += 1
        print(f"{done}/{total}: {text}", file=sys.stderr, flush=True)

    with ProcessPoolExecutor(processes, mp_context=context, initializer=one_thread) as pool:
        try:
            runs = {
                pool.submit(run_of, experiment, policy, seed): (experiment, result, policy, seed)
                for experiment, result, policy, seed in cases
            }
            bases = {
                pool.submit(prepare_noise, experiment, seeds[0]): (experiment, result)
                for experiment, result in zip(experiments, results)
            }
            noises: dict[Future[float], tuple[CorpusResult, str]] = {}
            for base in as_completed([*runs, *bases]):
                if base in runs:
                    experiment, result, policy, seed = runs[base]
                    result.runs.setdefault(policy, {})[seed] = run = base.result()
                    advance(f"{result.name}, {policy}, seed {seed}: loss {run.loss:.4f}")
                else:
                    experiment, result = bases[base]
                    base.result()
                    advance(f"{result.name}: gradient of all samples")
                    noises |= {
                        pool.submit(noise_of, experiment, policy, seeds[0]): (result, policy)
                        for policy in experiment.policies
                    }
            for noise in as_completed(noises):
                result, policy = noises[noise]
                result.cosines[policy] = noise.result()
                advance(f"{result.name}, {policy}: cosine {noise.result():.3f}")
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return results


def arguments() -> argparse.Namespace:
    result = argparse.ArgumentParser(
        description=__doc__,
        epilog="example: python -m benchmarks.learning.heldout_loss --data chat.parquet:text "
        "--seeds 5",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    result.add_argument(
        "--data", action="append", default=[], help="FILE.parquet:COLUMN of text; may be repeated"
    )
    result.add_argument(
        "--tokenizer",
        help="a folder or a name on the Hugging Face hub; by default one is trained on the text",
    )
    result.add_argument("--vocab-size", type=int, default=1024, help="of a tokenizer trained here")
    result.add_argument("--max-length", type=int, default=768, help="longer samples are left out")
    result.add_argument("--samples", type=int, default=3200, help="to train on, all ranks together")
    result.add_argument("--per-step", type=int, default=32, help="samples of a fixed step")
    result.add_argument("--world-size", type=int, default=8, help="data-parallel ranks")
    result.add_argument("--learning-rate", type=float, default=Recipe.learning_rate)
    result.add_argument("--seeds", type=int, default=5, help="seeds, from 0 on")
    result.add_argument("--policies", nargs="+", choices=list(POLICIES), default=DEFAULT)
    result.add_argument("--processes", type=int, help="by default as many as cores")
    result.add_argument("--out", type=Path, default=Path("out/learning"), help="finished runs")
    result.add_argument("--json", action="store_true", help="print one JSON object on stdout")
    options = result.parse_args()
    if options.seeds < 2:
        result.error("--seeds must be at least 2, as a spread needs")
    if options.per_step % options.world_size:
        result.error(
            f"--per-step {options.per_step} must be a multiple of --world-size "
            f"{options.world_size}, as a rank of fixed batches has equally many samples in each"
        )
    return options


def main() -> None:
    options = arguments()
    if not options.data:
        print(
            "skipped: this benchmark trains on your text; give --data FILE.parquet:COLUMN "
            "(make learning DATA=FILE.parquet:COLUMN)",
            file=sys.stderr,
        )
        return
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    policies = list(dict.fromkeys([BASE, *options.policies]))
    try:
        texts = [
            read_text(
                spec,
                tokenizer=options.tokenizer,
                vocab_size=options.vocab_size,
                max_length=options.max_length,
                held_out=_HELD_OUT,
                cache=options.out,
            )
            for spec in options.data
        ]
    except EvenstepError as error:
        sys.exit(str(error))
    experiments = [
        Experiment(
            text=text,
            recipe=Recipe(vocab_size=text.vocab_size, learning_rate=options.learning_rate),
            samples=options.samples,
            per_step=options.per_step,
            world_size=options.world_size,
            policies=policies,
            cache=options.out,
        )
        for text in texts
    ]
    results = measure(experiments, range(options.seeds), options.processes or cores or 1)
    show(*(table_of(result) for result in results), as_json=options.json)


if __name__ == "__main__":
    main()
