"""Demand: samples that steps to come draw of each source."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from evenstep.arrays import Float64Array
from evenstep.mixture.schedules import Past, Schedule
from evenstep.mixture.weights import check_names, check_weights, in_order
from evenstep.plan.argument_checks import check_at_least


def weights_ahead(schedule: Schedule, sources: Sequence[str], steps: Iterable[int]) -> Float64Array:
    """[steps, sources] weights at steps to come, each row with a sum of 1. A `FeedbackSchedule`,
    whose weights are not known in advance, is taken to keep those that it has.

    Raises:
        ConfigurationError: weights that `Mixer` refuses, too.
    """
    rows = []
    known = Past()
    for step in steps:
        weights = check_weights(schedule.weights(step, known), f"weights of step {step:,}")
        check_names(weights, sources, f"weights of step {step:,}")
        rows.append(in_order(weights, sources))
    return np.array(rows, np.float64).reshape(len(rows), len(sources))


def draws_of(
    weights: Float64Array,
    tokens: Float64Array,
    *,
    samples_per_step: int | None = None,
    tokens_per_step: int | None = None,
    by: str = "samples",
) -> Float64Array:
    """[steps, sources] samples that a step draws of each source, on average.

    Args:
        weights: [steps, sources]
        tokens: [sources] of a sample, on average.
        samples_per_step, tokens_per_step, by: see `Mixer`.
    """
    check_at_least(1, samples_per_step=samples_per_step, tokens_per_step=tokens_per_step)
    length: Float64Array = np.maximum(tokens, 1.0)
    shares: Float64Array = weights / length if by == "tokens" else weights
    shares = shares / shares.sum(axis=1, keepdims=True)
    samples: Float64Array = np.full(len(shares), samples_per_step or 0, np.float64)  # [steps]
    if tokens_per_step is not None:
        samples = tokens_per_step / (shares @ length)
    return shares * samples[:, None]


def telling_rows(draws: Float64Array, at_most: int = 32) -> Float64Array:
    """[times, sources] rows of `draws` that are enough to plan by: those in which a source is drawn
    from most. Of more than `at_most`, the last is replaced by the largest draws of each source that
    the others do not have."""
    rows: Float64Array = np.unique(draws, axis=0)
    peaks = np.unique(rows.argmax(axis=0))
    if len(peaks) <= at_most:
        # Between the peaks, others that are spread evenly.
        spread = np.linspace(0, len(rows) - 1, at_most - len(peaks)).astype(np.int64)
        kept: Float64Array = rows[np.union1d(peaks, spread)]
        return kept
    chosen = rows[peaks[: at_most - 1]]
    rest = np.where(rows.max(axis=0) > chosen.max(axis=0), rows.max(axis=0), 0.0)
    return np.vstack([chosen, rest])
