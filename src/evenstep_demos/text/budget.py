"""Chooses the samples to train on, and a batch size and a budget that are fair to compare.

Both follow from simulating the policies over the known lengths. Losses can be compared only after
equally many updates, so the budget of `Even` is lowered until it makes as many steps as a whole
number of samples in fixed batches. Nothing here trains or reads a clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from evenstep.plan import Even, FixedBatch, Policy
from evenstep.tools.simulate import SimulationResult, deal, simulate

REPEATS = 3
"""How often both runs are made, each time with initial weights and an order of their own."""

ACCUMULATE = 4
"""Steps to an update: an update of few ranks then holds as many groups as a step of more ranks."""

_PREDICTED = ("steps", "padding", "imbalance", "imbalance_p95", "efficiency", "samples_per_step")
_FEWEST = 8  # samples per rank; with fewer there is nothing to compare


@dataclass(frozen=True, kw_only=True)
class TrainingOptions:
    """Options of a demo that trains a model with fixed batches and with `Even`."""

    world_size: int = 2
    max_tokens: int = 1536
    """Token budget of a batch on one rank, padding included."""
    seed: int = 0
    seconds: float = 100.0
    """About how long all runs may take together; decides the number of samples."""
    samples: int | None = None
    """Samples to train on, rounded down to a multiple of `world_size`; overrides `seconds`."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The samples of the runs, the fixed batch size, and the budget of `Even`."""

    samples: int
    """A multiple of the number of ranks, so that each is trained on once."""
    batch_size: int
    """Samples per rank and step of the fixed batches."""
    max_tokens: int
    """Budget with which `Even` makes about as many steps; at most that of the options."""
    predicted: Mapping[str, Mapping[str, Any]]
    """Run -> figures of its simulation, in padded tokens."""


def choose(
    lengths: npt.NDArray[np.int64], options: TrainingOptions, seconds_per_token: float
) -> Choice:
    """Chooses how many of the first samples to train on, the batch size and the budget.

    Args:
        lengths: [samples] tokens of all samples.
        seconds_per_token: measured time of one padded token on one rank.
    """
    ranks = options.world_size
    available = len(lengths) // ranks * ranks
    if options.samples is not None:
        samples = min(options.samples, available) // ranks * ranks
    else:
        # A step lasts as long as its slowest rank.
        _, both = _fixed_and_even(lengths[:available], options)
        tokens = sum(float(result.costs.max(axis=1).sum()) for result in both)
        share = options.seconds / (REPEATS * tokens * seconds_per_token)
        affordable = int(available * min(1.0, share)) // ranks * ranks
        samples = min(available, max(affordable, _FEWEST * ranks))
    lengths = lengths[:samples]
    batch_size, (fixed, even) = _fixed_and_even(lengths, options)
    tried = {options.max_tokens: even}
    low, high = int(lengths.max()), options.max_tokens
    while low < high:
        middle = (low + high) // 2
        tried[middle] = _simulate(Even(middle), lengths, options)
        low, high = (middle + 1, high) if tried[middle].steps > fixed.steps else (low, middle)
    budget = min(tried, key=lambda tokens: (abs(tried[tokens].steps - fixed.steps), -tokens))
    return Choice(
        samples=samples,
        batch_size=batch_size,
        max_tokens=budget,
        predicted={
            run: {name: getattr(result, name) for name in _PREDICTED}
            for run, result in (("fixed", fixed), ("evenstep", tried[budget]))
        },
    )


def _fixed_and_even(
    lengths: npt.NDArray[np.int64], options: TrainingOptions
) -> tuple[int, tuple[SimulationResult, SimulationResult]]:
    """Fixed batches as large as those of `Even`, rounded down; and both simulations."""
    even = _simulate(Even(options.max_tokens), lengths, options)
    batch_size = max(1, int(even.samples_per_step / options.world_size))
    return batch_size, (_simulate(FixedBatch(batch_size), lengths, options), even)


def _simulate(
    policy: Policy, lengths: npt.NDArray[np.int64], options: TrainingOptions
) -> SimulationResult:
    shards = deal(len(lengths), options.world_size, options.seed)
    return simulate(
        policy,
        [lengths[shard] for shard in shards],
        accumulate=ACCUMULATE,
        seed=options.seed,
        identities=shards,
    )
