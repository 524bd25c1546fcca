"""Chooses the samples to train on, and a fixed batch size that is fair to compare with.

Both follow from simulating the policies over the known lengths, which a user would have to do by
hand to choose a batch size. Nothing here trains or reads a clock.
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
from evenstep_demos.text.options import DemoOptions

_PREDICTED = ("steps", "padding", "imbalance", "imbalance_p95", "efficiency", "samples_per_step")
_FEWEST = 8  # samples per rank; with fewer there is nothing to compare


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The samples and the batch size of the runs."""

    samples: int
    """A multiple of the number of ranks, so that nothing is trained on twice."""
    batch_size: int
    """Samples per rank and step of the fixed batches."""
    predicted: Mapping[str, Mapping[str, Any]]
    """Run -> figures of its simulation, in padded tokens."""


def choose(
    lengths: npt.NDArray[np.int64], options: DemoOptions, seconds_per_token: float | None = None
) -> Choice:
    """Chooses how many samples to train on, from the first one on, and the batch size.

    Args:
        lengths: [documents] tokens of all documents to train on.
        options: `samples` decides if it is set, and `seconds` otherwise; at most all documents.
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
    return Choice(
        samples=samples,
        batch_size=_batch_size(even),
        predicted={"fixed": _prediction(fixed), "evenstep": _prediction(even)},
    )


def _prediction(result: SimulationResult) -> dict[str, Any]:
    return {name: getattr(result, name) for name in _PREDICTED}


def _batch_size(even: SimulationResult) -> int:
    return max(1, round(even.samples_per_step / even.world_size))


def _both(
    lengths: npt.NDArray[np.int64], options: DemoOptions
) -> tuple[SimulationResult, SimulationResult]:
    even = _simulate(Even(options.max_tokens), lengths, options)
    return _simulate(FixedBatch(_batch_size(even)), lengths, options), even


def _simulate(
    policy: Policy, lengths: npt.NDArray[np.int64], options: DemoOptions
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
