"""Epochs of every policy that `evenstep simulate` knows, beside each other.

Whole epochs with their drain, over lengths of a named distribution. All have the same memory: the
token budget, or as many samples as fit in it if all were the longest. Imbalance and efficiency are
in padded tokens, or real ones where a policy packs; efficiency leaves out that small groups keep a
GPU less busy, which flatters all policies of a fixed batch size. The number of seeds is --repeats
at 8 ranks, and fewer with more ranks; at least 1.
"""

from __future__ import annotations

import sys

from benchmarks.lib.epoch import Epoch, in_order
from benchmarks.lib.report import Spread, Table, parser, progress, show
from evenstep.cost import PaddedTokenCost
from evenstep.plan import FixedBatch
from evenstep.plan.policies.by_name import PolicyOptions
from evenstep.tools.simulate import DISTRIBUTIONS, deal, sample_lengths, simulate
from evenstep.tools.simulate.yardsticks import COMPARED, Yardstick

SAMPLES = {8: 12_000, 64: 4_096, 512: 2_048}  # per rank
FIGURES = {  # title -> figure of an epoch, digits, factor
    "imbalance": ("imbalance", 4, 1),
    "padding %": ("padding", 2, 100),
    "efficiency %": ("efficiency", 2, 100),
    "samples/step": ("samples_per_step", 1, 1),
    "tokens/step": ("tokens_per_step", 0, 1),
}


def run(name: str, distribution: str, ranks: int, seed: int) -> Epoch:
    known = DISTRIBUTIONS[distribution]
    lengths = sample_lengths(distribution, ranks * SAMPLES[ranks], seed)
    shares = deal(len(lengths), ranks, seed)
    arrivals = [lengths[share] for share in shares]
    options = PolicyOptions(
        max_tokens=known.max_tokens,
        batch_size=max(1, known.max_tokens // known.longest),
        cost=PaddedTokenCost(),
    )
    policy = COMPARED[name](options)
    if isinstance(policy, Yardstick):
        dealt = [own.groups for own in policy.dealt(lengths, ranks, seed)]
        return Epoch.of_groups(dealt, [lengths] * ranks)
    if isinstance(policy, FixedBatch):
        return Epoch.of_groups(in_order(policy, arrivals), arrivals)
    result = simulate(policy, arrivals, seed=seed, identities=shares)
    if result.missing or result.duplicates:
        sys.exit(f"{name} lost {result.missing} samples and repeated {result.duplicates}")
    return Epoch.of_result(result)


def main() -> None:
    example = "python -m benchmarks.planning.quality --lengths ultrachat --ranks 8"
    arguments = parser(__doc__ or "", example, repeats=3)
    add = arguments.add_argument
    add("--ranks", type=int, nargs="+", default=list(SAMPLES), choices=list(SAMPLES))
    add("--lengths", nargs="+", default=list(DISTRIBUTIONS), choices=list(DISTRIBUTIONS))
    options = arguments.parse_args()
    tables = []
    for ranks in options.ranks:
        seeds = range(options.seed, options.seed + max(1, options.repeats * 8 // ranks))
        rows = []
        for distribution in options.lengths:
            for name in COMPARED:
                progress(f"{ranks} ranks: {name} over {distribution}")
                own = [run(name, distribution, ranks, seed) for seed in seeds]
                cells = [
                    Spread.of([factor * getattr(epoch, figure) for epoch in own]).text(digits)
                    for figure, digits, factor in FIGURES.values()
                ]
                rows.append([distribution, name, *cells])
        title = f"{ranks} ranks, median (p10-p90) over {len(seeds)} seeds"
        tables.append(Table(["lengths", "policy", *FIGURES], rows, title))
    show(*tables, as_json=options.json)


if __name__ == "__main__":
    main()
