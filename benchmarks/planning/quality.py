"""Epochs of every policy, compared with the rule of the released ODB package.

Whole epochs with their drain, over lengths of a named distribution:

    evenstep  every policy that `evenstep simulate` knows, as that runs it: `Even` and `TokenBudget`
              size their windows by themselves, the others plan with 1,024 samples
    odb       the package's own loop (see `lib/released.py`), with windows of 1,024 and without its
              warm-up, as the paper describes it; that balances better than its default

All have the same memory: the token budget, or as many samples as fit in it if all were the longest.
Imbalance and efficiency are in padded tokens, or real ones where a policy packs; efficiency leaves
out that small groups keep a GPU less busy, which flatters all policies of a fixed batch size. `x
odb` is efficiency over odb's: how much sooner the same samples are done. `evenstep simulate` has
more figures of each policy.

The number of seeds is --repeats at 8 ranks, and fewer with more ranks; at least 1.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks.lib import released
from benchmarks.lib.epoch import Epoch, in_order
from benchmarks.lib.report import Spread, Table, parser, progress, require_peer, show
from benchmarks.planning.imbalance_plot import plot
from evenstep.cost import PaddedTokenCost
from evenstep.plan import FixedBatch, Policy
from evenstep.plan.policies.by_name import PolicyOptions
from evenstep.tools.simulate import DISTRIBUTIONS, deal, sample_lengths, simulate
from evenstep.tools.simulate.yardsticks import COMPARED, Yardstick

BUFFER = 1024
SAMPLES = {8: 12_000, 64: 4_096, 512: 2_048}  # per rank
RULE = "odb"
HEADER = ["lengths", "policy", "imbalance", "padding %", "efficiency %", f"x {RULE}"]
HEADER += ["samples/step", "tokens/step"]


def build(name: str, *, max_tokens: int, longest: int) -> Policy:
    """A policy with a budget of tokens, or of as many samples as fit in it if all were `longest`.

    Args:
        name: a key of `COMPARED`.
    """
    options = PolicyOptions(
        max_tokens=max_tokens,
        batch_size=max(1, max_tokens // longest),
        cost=PaddedTokenCost(),
    )
    return COMPARED[name](options)


def run(name: str, distribution: str, world_size: int, samples: int, seed: int) -> Epoch:
    """An epoch of a policy, or of the package."""
    known = DISTRIBUTIONS[distribution]
    lengths = sample_lengths(distribution, world_size * samples, seed)
    shares = deal(len(lengths), world_size, seed)
    arrivals = [lengths[share] for share in shares]
    if name == RULE:
        rule = released.run(arrivals, max_tokens=known.max_tokens, buffer_size=BUFFER)
        return Epoch.of_groups(rule, arrivals)
    policy = build(name, max_tokens=known.max_tokens, longest=known.longest)
    if isinstance(policy, Yardstick):
        dealt = [own.groups for own in policy.dealt(lengths, world_size, seed)]
        return Epoch.of_groups(dealt, [lengths] * world_size)
    if isinstance(policy, FixedBatch):
        return Epoch.of_groups(in_order(policy, arrivals), arrivals)
    result = simulate(policy, arrivals, seed=seed, identities=shares)
    if result.missing or result.duplicates:
        sys.exit(f"{name} lost {result.missing} samples and repeated {result.duplicates}")
    return Epoch.of_result(result)


def row(distribution: str, name: str, own: Sequence[Epoch], rule: Sequence[Epoch]) -> list[str]:
    def text(figure: str, digits: int, factor: int = 1) -> str:
        return Spread.of([factor * getattr(epoch, figure) for epoch in own]).text(digits)

    gains = [mine.efficiency / its.efficiency for mine, its in zip(own, rule)]
    return [
        distribution,
        name,
        text("imbalance", 4),
        text("padding", 2, 100),
        text("efficiency", 2, 100),
        Spread.of(gains).text(3),
        text("samples_per_step", 1),
        text("tokens_per_step", 0),
    ]


def main() -> None:
    example = "python -m benchmarks.planning.quality --lengths ultrachat --world-sizes 8"
    arguments = parser(__doc__ or "", example, repeats=3)
    add = arguments.add_argument
    add("--world-sizes", type=int, nargs="+", default=[8, 64, 512])
    add("--lengths", nargs="+", default=list(DISTRIBUTIONS), choices=list(DISTRIBUTIONS))
    add("--policies", nargs="+", default=list(COMPARED), choices=list(COMPARED))
    add("--samples", type=int, help="per rank; fewer with many ranks if not given")
    add("--plot", type=Path, help="a PNG file of imbalance, of the first of --lengths")
    options = arguments.parse_args()
    require_peer()
    torch.set_num_threads(1)
    tables = []
    lines: dict[str, dict[int, float]] = {}
    for world_size in options.world_sizes:
        samples = options.samples or SAMPLES.get(world_size, SAMPLES[512])
        seeds = range(options.seed, options.seed + max(1, options.repeats * 8 // world_size))
        rows = []
        for distribution in options.lengths:
            rule: list[Epoch] = []
            for name in [RULE, *options.policies]:
                progress(f"W={world_size}: {name} over {distribution}")
                own = [run(name, distribution, world_size, samples, seed) for seed in seeds]
                rule = rule or own
                rows.append(row(distribution, name, own, rule))
                if distribution == options.lengths[0]:
                    median = Spread.of([epoch.imbalance for epoch in own]).median
                    lines.setdefault(name, {})[world_size] = median
        title = f"{world_size} ranks, median (p10-p90) over {len(seeds)} seeds"
        tables.append(Table(HEADER, rows, title))
    if options.plot:
        title = f"How long GPUs wait for the slowest: {options.lengths[0]}"
        plot(lines, options.plot, title=title)
    show(*tables, as_json=options.json)


if __name__ == "__main__":
    main()
