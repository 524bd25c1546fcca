"""Chooses a batch size and a budget that are fair to compare.

Both follow from simulating the policies over the known lengths. Losses can be compared only after
equally many updates, so the budget of `Even` is lowered until it makes as many steps as a whole
number of samples in fixed batches.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from evenstep.plan import Even, FixedBatch, Policy
from evenstep.tools.simulate import SimulationResult, deal, simulate

ACCUMULATE = 4
"""Steps to an update: an update of few ranks then holds as many groups as a step of more ranks."""


@dataclass(frozen=True, kw_only=True)
class TrainingOptions:
    """Options of a demo that trains a model with fixed batches and with `Even`."""

    world_size: int = 2
    max_tokens: int = 1536
    """Token budget of a batch on one rank, padding included."""
    samples: int = 2000
    """Samples to train on, at most."""
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What both runs are given."""

    batch_size: int
    """Samples per rank and step of the fixed batches."""
    max_tokens: int
    """Budget with which `Even` makes about as many steps; at most that of the options."""


def choose(lengths: npt.NDArray[np.int64], options: TrainingOptions) -> Choice:
    """Chooses fixed batches as large as those of `Even`, rounded down, and the budget.

    Args:
        lengths: [samples] tokens of the samples to train on.
    """
    even = _simulate(Even(options.max_tokens), lengths, options)
    batch_size = max(1, int(even.samples_per_step / options.world_size))
    fixed = _simulate(FixedBatch(batch_size), lengths, options)
    steps = {options.max_tokens: even.steps}
    low, high = int(lengths.max()), options.max_tokens
    while low < high:
        middle = (low + high) // 2
        steps[middle] = _simulate(Even(middle), lengths, options).steps
        low, high = (middle + 1, high) if steps[middle] > fixed.steps else (low, middle)
    budget = min(steps, key=lambda tokens: (abs(steps[tokens] - fixed.steps), -tokens))
    return Choice(batch_size=batch_size, max_tokens=budget)


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
