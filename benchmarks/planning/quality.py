"""Epochs of every policy, beside the rule of the released ODB package.

Whole epochs with their drain, over lengths alone, for 8, 64 and 512 ranks:

    evenstep  every policy that `evenstep simulate` knows, as that runs it: `Even` and `TokenBudget`
              size their windows by themselves, the others plan with 1,024 samples
    odb       the package's own loop (see `lib/released.py`), with windows of 1,024 and without its
              warm-up, as the paper describes it; that balances better than its default
    lengths   the named distributions; and the recorded lengths of corpora, FOLDER/lengths/*.npy,
              cut off at 16,384 tokens as a context window does, where each rank gets 256 or more

All have the same memory: the token budget, or as many samples as fit in it if all were the longest.
Imbalance and efficiency are in padded tokens, or real ones where a policy packs; efficiency leaves
out that small groups keep a GPU less busy, which flatters all policies of a fixed batch size. The
delay is the longest that a sample waited, in buffers: steps x samples per step and rank / 1,024.
Planning is one rank's CPU time per sample planned, in all rounds of the epoch together.
`x odb` is efficiency over odb's: how much sooner the same samples are done.

The number of seeds is --repeats at 8 ranks, and as many fewer as there are more ranks; at least 1.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.lib import released
from benchmarks.lib.epoch import Epoch, in_order, plan_offline
from benchmarks.lib.report import PEER, Spread, parser, print_json, progress, require_peer
from benchmarks.planning.imbalance_plot import plot
from evenstep.arrays import Int64Array
from evenstep.cost import PaddedTokenCost
from evenstep.plan import FixedBatch, Lengths, Policy
from evenstep.plan.policies.by_name import POLICIES, PolicyOptions
from evenstep.tools.report import text_table
from evenstep.tools.simulate import DISTRIBUTIONS, deal, load_lengths, sample_lengths, simulate

BUFFER = 1024
SAMPLES = {8: 12_000, 64: 4_096, 512: 2_048}  # per rank, of a distribution
CONTEXT = 16_384  # tokens at which a corpus is cut, and its token budget
FEWEST = 256  # samples per rank of a corpus
MANY = 512  # ranks from which on only one distribution is measured
RULE = "odb"


@dataclass(frozen=True)
class Source:
    """Where lengths come from."""

    name: str
    max_tokens: int
    longest: int
    draw: Callable[[int, int], Int64Array]
    """Ranks and seed -> lengths of all samples."""

    @classmethod
    def distribution(cls, name: str, samples: int | None) -> Source:
        known = DISTRIBUTIONS[name]

        def draw(world_size: int, seed: int) -> Int64Array:
            per_rank = samples or SAMPLES.get(world_size, SAMPLES[512])
            return sample_lengths(name, world_size * per_rank, seed)

        return cls(name, known.max_tokens, known.longest, draw)

    @classmethod
    def corpus(cls, file: Path) -> Source:
        lengths = np.minimum(load_lengths(str(file)), CONTEXT)
        return cls(file.stem, CONTEXT, int(lengths.max()), lambda world_size, seed: lengths)


def corpora(folder: Path) -> list[Source]:
    """One for each corpus; files named after another one, as NAME_part, hold parts of it."""
    files = sorted((folder / "lengths").glob("*.npy"))
    if not files:
        print(f"no recorded lengths in {folder / 'lengths'}: skipped", file=sys.stderr)
    names = [file.stem for file in files]
    whole = [f for f in files if not any(f.stem.startswith(f"{name}_") for name in names)]
    return [Source.corpus(file) for file in whole]


@dataclass(frozen=True)
class Measured:
    """One epoch of one policy."""

    epoch: Epoch
    delay: float | None
    """In buffers."""
    plan_us: float

    def figures(self) -> dict[str, float]:
        figures = {**vars(self.epoch), "plan_us_per_sample": self.plan_us}
        return figures if self.delay is None else {**figures, "max_delay_buffers": self.delay}


def build(name: str, *, max_tokens: int, longest: int, lengths: Int64Array) -> Policy:
    """A policy with a budget of tokens, or of as many samples as fit in it if all were `longest`.

    Args:
        name: a key of `POLICIES`.
        lengths: [samples] of the whole data set, for policies that need them in advance.
    """
    options = PolicyOptions(
        max_tokens=max_tokens,
        batch_size=max(1, max_tokens // longest),
        cost=PaddedTokenCost(),
        lengths=Lengths(lengths),
    )
    return POLICIES[name](options)


def run(policy_name: str, source: Source, world_size: int, seed: int) -> Measured:
    lengths = source.draw(world_size, seed)
    shares = deal(len(lengths), world_size, seed)
    arrivals = [lengths[share] for share in shares]
    per_rank = len(shares[0])
    if policy_name == RULE:
        rule = released.run(arrivals, max_tokens=source.max_tokens, buffer_size=BUFFER)
        epoch = Epoch.of_groups(rule.groups, arrivals)
        delay = _buffers(rule.max_delay_steps, epoch, world_size)
        return Measured(epoch, delay, 1e6 * rule.plan_seconds / per_rank)
    policy = build(
        policy_name, max_tokens=source.max_tokens, longest=source.longest, lengths=lengths
    )
    if policy.lengths is not None:
        begin = time.thread_time()
        dealt = plan_offline(policy, lengths, world_size, seed)
        us = 1e6 * (time.thread_time() - begin) / per_rank
        epoch = Epoch.of_groups(dealt, [lengths] * world_size, packed=policy.packed)
        return Measured(epoch, None, us)
    if isinstance(policy, FixedBatch):
        begin = time.thread_time()
        groups = in_order(policy, arrivals)
        us = 1e6 * (time.thread_time() - begin) / len(lengths)
        return Measured(Epoch.of_groups(groups, arrivals), 0.0, us)
    result = simulate(policy, arrivals, seed=seed, identities=shares)
    if result.missing or result.duplicates:
        sys.exit(f"{policy_name} lost {result.missing} samples and repeated {result.duplicates}")
    epoch = Epoch.of_result(result)
    delay = _buffers(result.max_delay_steps, epoch, world_size)
    return Measured(epoch, delay, result.plan_us_per_sample)


def _buffers(steps: int, epoch: Epoch, world_size: int) -> float:
    return steps * epoch.samples_per_step / world_size / BUFFER


@dataclass(frozen=True)
class Case:
    """One policy over one source with one number of ranks, under several seeds."""

    world_size: int
    source: str
    policy: str
    seeds: list[Measured]
    rule: list[Measured]

    def spread(self, figure: str) -> Spread:
        return Spread.of([one.figures()[figure] for one in self.seeds])

    def against_rule(self, figure: str) -> Spread:
        """Ratio to the released rule, seed by seed."""
        pairs = zip(self.seeds, self.rule)
        return Spread.of([own.figures()[figure] / its.figures()[figure] for own, its in pairs])

    def as_dict(self) -> dict[str, Any]:
        common = [f for f in self.seeds[0].figures() if f in self.rule[0].figures()]
        return {
            "world_size": self.world_size,
            "lengths": self.source,
            "policy": self.policy,
            "seeds": len(self.seeds),
            **{f: self.spread(f).as_dict() for f in self.seeds[0].figures()},
            f"ratio_to_{RULE}": {
                f: self.against_rule(f).as_dict()
                for f in common
                if all(its.figures()[f] for its in self.rule)
            },
        }

    def row(self, first: bool) -> list[str]:
        delayed = "max_delay_buffers" in self.seeds[0].figures()
        return [
            self.source if first else "",
            self.policy,
            self._text("imbalance", 4),
            self._text("padding", 2, 100),
            self._text("efficiency", 2, 100),
            _text(self.against_rule("efficiency"), 3),
            f"{self.spread('samples_per_step').median:,.1f}",
            f"{self.spread('tokens_per_step').median:,.0f}",
            f"{self.spread('max_delay_buffers').median:.2f}" if delayed else "-",
            f"{self.spread('plan_us_per_sample').median:.2f}",
            f"{1 / self.against_rule('plan_us_per_sample').median:.1f}",
        ]

    def _text(self, figure: str, digits: int, factor: int = 1) -> str:
        return _text(Spread.of([factor * one.figures()[figure] for one in self.seeds]), digits)


def _text(spread: Spread, digits: int) -> str:
    """With the half width of its spread, where there is one."""
    if spread.low == spread.high:
        return f"{spread.median:.{digits}f}"
    return f"{spread.median:.{digits}f} ±{(spread.high - spread.low) / 2:.{digits}f}"


HEADER = ["lengths", "policy", "imbalance", "padding %", "efficiency %", f"x {RULE}"]
HEADER += ["samples/step", "tokens/step", "delay", "plan µs/sample", f"{RULE}'s µs / own"]


def cases(
    sources: Sequence[Source], world_size: int, options: argparse.Namespace
) -> Iterator[Case]:
    seeds = range(options.seed, options.seed + max(1, options.repeats * 8 // world_size))
    for source in sources:
        rule: list[Measured] = []
        for policy in [RULE, *options.policies]:
            progress(f"W={world_size}: {policy} over {source.name}")
            measured = [run(policy, source, world_size, seed) for seed in seeds]
            rule = rule or measured
            yield Case(world_size, source.name, policy, measured, rule)
    progress("")


def chosen(options: argparse.Namespace, world_size: int) -> list[Source]:
    names = options.lengths
    if world_size >= MANY:
        names = [name for name in names if name == options.plotted] or names[:1]
    sources = [Source.distribution(name, options.samples) for name in names]
    if options.quick or world_size >= MANY:
        return sources
    for corpus in corpora(options.data):
        per_rank = len(corpus.draw(world_size, 0)) // world_size
        if per_rank >= FEWEST:
            sources.append(corpus)
        else:
            text = f"{corpus.name} holds {per_rank} samples for each of {world_size} ranks: skipped"
            print(text, file=sys.stderr)
    return sources


def main() -> None:
    arguments = parser(__doc__ or "", "python -m benchmarks.planning.quality --quick", repeats=3)
    add = arguments.add_argument
    add("--data", type=Path, default=Path("../shared/data"), help="folder of recorded lengths")
    add("--world-sizes", type=int, nargs="+", default=[8, 64, 512])
    add("--lengths", nargs="+", default=list(DISTRIBUTIONS), choices=list(DISTRIBUTIONS))
    add("--policies", nargs="+", default=list(POLICIES), choices=list(POLICIES))
    add("--samples", type=int, help="per rank; fewer with many ranks if not given")
    add("--quick", action="store_true", help="8 ranks, two distributions, a quarter of the samples")
    add("--plot", type=Path, help="a PNG file of imbalance against the number of ranks")
    add("--plotted", default="sharegpt4o", help="the distribution plotted, and run on 512 ranks")
    options = arguments.parse_args()
    require_peer()
    torch.set_num_threads(1)
    if options.quick:
        options.world_sizes, options.lengths = [8], ["ultrachat", "sharegpt4o"]
        options.repeats, options.samples = 1, options.samples or SAMPLES[8] // 4
    begin = time.process_time()
    measured: list[Case] = []
    for world_size in options.world_sizes:
        here: list[Case] = []
        for case in cases(chosen(options, world_size), world_size, options):
            here.append(case)
        measured += here
        if not options.json:
            rows = [case.row(case.policy == RULE) for case in here]
            title = (
                f"{world_size} ranks, median over {len(here[0].seeds)} seeds (± half of p10-p90)"
            )
            print(text_table(HEADER, rows, title=title), end="\n\n", flush=True)
    if options.plot:
        lines: dict[str, dict[int, float]] = {}
        for case in measured:
            if case.source == options.plotted:
                point = {case.world_size: case.spread("imbalance").median}
                lines.setdefault(case.policy, {}).update(point)
        plot(lines, options.plot, title=f"How long GPUs wait for the slowest: {options.plotted}")
    if options.json:
        print_json({"peer": PEER, "buffer": BUFFER, "cases": [one.as_dict() for one in measured]})
    else:
        print(f"{time.process_time() - begin:.0f} seconds of CPU time")


if __name__ == "__main__":
    main()
