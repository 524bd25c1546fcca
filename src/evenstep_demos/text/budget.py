"""Chooses the samples to train on, and a batch size and a budget that are fair to compare.

All follow from simulating the policies over the known lengths, which a user would have to do by
hand to choose a batch size. Losses can be compared only after equally many updates; so the budget
of `Even` is lowered until it makes as many steps as a whole number of samples in fixed batches.
Nothing here trains or reads a clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from evenstep.errors import ConfigurationError
from evenstep.plan import Even, FixedBatch, Policy
from evenstep.tools.simulate import SimulationResult, deal, simulate
from evenstep_demos.text.options import TrainingOptions

_PREDICTED = ("steps", "padding", "imbalance", "imbalance_p95", "efficiency", "samples_per_step")
_FEWEST = 8  # samples per rank; with fewer there is nothing to compare


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The samples of the runs, the fixed batch size, and the budget of `Even`."""

    samples: int
    """A multiple of the number of ranks, so that nothing is trained on twice."""
    batch_size: int
    """Samples per rank and step of the fixed batches."""
    max_tokens: int
    """Budget with which `Even` makes about as many steps; at most that of the options."""
    predicted: Mapping[str, Mapping[str, Any]]
    """Run -> figures of its simulation, in padded tokens."""


def choose(
    lengths: npt.NDArray[np.int64], options: TrainingOptions, seconds_per_token: float | None = None
) -> Choice:
    """Chooses how many samples to train on, from the first one on, the batch size and the budget.

    Args:
        lengths: [samples] tokens of all samples to train on.
        options: `samples` decides if it is set, and `seconds` otherwise; at most all of them.
        seconds_per_token: measured time of one padded token on one rank; needed unless `samples`
            is set.

    Raises:
        ConfigurationError: neither is known.
    """
    ranks = options.world_size
    available = len(lengths) - len(lengths) % ranks
    if options.samples is not None:
        samples = min(options.samples, available) // ranks * ranks
    elif seconds_per_token is None:
        raise ConfigurationError("seconds_per_token=None: needed where options.samples is not set")
    else:
        once = _seconds(_both(lengths[:available], options)) * seconds_per_token
        seconds = options.repeats * once
        affordable = int(available * min(1.0, options.seconds / seconds)) // ranks * ranks
        samples = min(available, max(affordable, _FEWEST * ranks))
    fixed, even = _both(lengths[:samples], options)
    batch_size = _batch_size(even)
    budget, even = _as_many_steps(fixed.steps, even, lengths[:samples], options)
    return Choice(
        samples=samples,
        batch_size=batch_size,
        max_tokens=budget,
        predicted={"fixed": _prediction(fixed), "evenstep": _prediction(even)},
    )


def _prediction(result: SimulationResult) -> dict[str, Any]:
    return {name: getattr(result, name) for name in _PREDICTED}


def _as_many_steps(
    steps: int, even: SimulationResult, lengths: npt.NDArray[np.int64], options: TrainingOptions
) -> tuple[int, SimulationResult]:
    """The budget with which `Even` makes `steps` steps, or comes closest; and what it makes.

    Args:
        steps: at least those of `even`.
        even: with the budget of the options.
    """
    tried = {options.max_tokens: even}
    low, high = int(lengths.max()), options.max_tokens
    while low < high:
        middle = (low + high) // 2
        tried[middle] = _simulate(Even(middle), lengths, options)
        low, high = (middle + 1, high) if tried[middle].steps > steps else (low, middle)
    best = min(tried, key=lambda budget: (abs(tried[budget].steps - steps), -budget))
    return best, tried[best]


def _batch_size(result: SimulationResult) -> int:
    """Whole samples of a rank's step."""
    return max(1, int(result.samples_per_step / result.world_size))


def _both(
    lengths: npt.NDArray[np.int64], options: TrainingOptions
) -> tuple[SimulationResult, SimulationResult]:
    even = _simulate(Even(options.max_tokens), lengths, options)
    return _simulate(FixedBatch(_batch_size(even)), lengths, options), even


def _simulate(
    policy: Policy, lengths: npt.NDArray[np.int64], options: TrainingOptions
) -> SimulationResult:
    shards = deal(len(lengths), options.world_size, options.seed)
    return simulate(
        policy,
        [lengths[shard] for shard in shards],
        accumulate=options.accumulate,
        seed=options.seed,
        identities=shards,
    )


def _seconds(results: tuple[SimulationResult, SimulationResult]) -> float:
    """Seconds of both runs at one per padded token: a step lasts as long as its slowest rank."""
    return sum(float(result.costs.max(axis=1).sum()) for result in results)
