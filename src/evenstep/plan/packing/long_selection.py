"""Which long documents a step holds: the choice behind `steady`.

A document is *long* if it costs more than a micro-batch without long documents. Each step considers
none of them, and every *run*: long documents of neighbouring length, one for each micro-batch. How
equal short documents would make the micro-batches, under the caps on tokens, is computed in closed
form: see `water_fill`. For the few best runs a second long document is considered too, where a
micro-batch could not be balanced otherwise. A step that would be uneven or short of tokens scores
badly, one with documents that have waited long scores well.

Invariants: a choice never holds more tokens than the step may, and a long document that has waited
for `patience` steps is in it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from evenstep.arrays import Float64Array, Int64Array
from evenstep.plan.packing.long_pairs import pair_long_documents
from evenstep.plan.packing.options import SteadyOptions
from evenstep.plan.packing.outliers import auto_thresholds
from evenstep.plan.packing.water_fill import water_fill

_PAIRED_RUNS = 4
"""The best runs, for which second long documents are considered."""
_EVEN_ENOUGH = 0.003
"""Imbalance below which a second long document is not worth its tokens."""
# What scores trade against each other, all in units of imbalance.
_NO_TOKENS = 0.3
"""Imbalance that is as bad as a step without any tokens."""
_AGE = 0.05
"""Imbalance accepted for long documents that have waited as long as they may."""
_STRANDED = 0.2
"""Imbalance accepted rather than leave such a document too few others to be planned with."""
_LONGEST_WAIT = 16
"""Steps of waiting from which on age counts in full, even where `patience` is more."""


@dataclass(frozen=True)
class Pool:
    """The documents that wait, divided into long and short ones."""

    lengths: Int64Array
    ages: Int64Array
    costs: Int64Array
    long: Int64Array
    """Positions of long documents, the shortest first."""
    short: Int64Array
    """Positions of the others, the oldest first."""
    short_tokens: Int64Array
    """[short] tokens of each and all before it."""
    short_costs: Int64Array
    """[short] cost of each and all before it."""

    @classmethod
    def of(cls, lengths: Int64Array, ages: Int64Array, options: SteadyOptions) -> Pool:
        costs = options.cost.of_documents(lengths)
        thresholds = options.thresholds or auto_thresholds(
            lengths, context=options.context, queues=1, cost=options.cost
        )
        is_long = lengths >= (thresholds[0] if thresholds else options.cap + 1)
        long, short = np.flatnonzero(is_long), np.flatnonzero(~is_long)
        return cls(
            lengths=lengths,
            ages=ages,
            costs=costs,
            long=long[np.argsort(lengths[long], kind="stable")],
            short=short,
            short_tokens=lengths[short].cumsum(),
            short_costs=costs[short].cumsum(),
        )

    @property
    def tokens(self) -> float:
        """Tokens of all short documents."""
        return float(self.short_tokens[-1]) if len(self.short) else 0.0

    @property
    def density(self) -> float:
        """Cost per token of the short documents."""
        return float(self.short_costs[-1]) / self.tokens if len(self.short) else 1.0


def choose_long(pool: Pool, options: SteadyOptions) -> Int64Array:
    """Chooses the long documents of this step.

    With three micro-batches and long documents of 22, 23, 24, 36, 37 and 50 tokens the runs are
    ``[22, 23, 24]``, ``[23, 24, 36]``, ``[24, 36, 37]`` and ``[36, 37, 50]``. The first is nearly
    even as it is; short documents would have to make up for far more in the last. So unless one
    of the others has waited long, it is the first run, or none if short documents alone do better.

    Returns:
        Positions of the documents.
    """
    count, long = options.micro_batches, pool.long
    if not len(long):
        return long
    oldest = int(long.min())
    forced = not len(pool.short) or int(pool.ages[oldest]) >= options.patience
    if len(long) < count:
        return _within(pool, options, long, oldest) if forced else long[:0]
    # runs: [runs, micro-batches] positions
    runs = long[np.arange(len(long) - count + 1)[:, None] + np.arange(count)]
    has_oldest = (runs == oldest).any(axis=1)  # [runs]
    outcomes, without_long = _evaluate_runs(pool, options, runs)
    scores = outcomes.scores + _adjustments(
        pool, options, pool.ages[runs].max(axis=1), has_oldest, np.full(len(runs), count), oldest
    )
    scores[pool.lengths[runs].sum(axis=1) > options.step_cap] = np.inf
    if forced:
        scores[~has_oldest] = np.inf
    best_runs = np.argsort(scores, kind="stable")[:_PAIRED_RUNS].tolist()
    uneven = [
        run
        for run in best_runs
        if scores[run] < np.inf and outcomes.imbalances[run] > 1 + _EVEN_ENOUGH
    ]
    choices: list[tuple[float, Int64Array]] = [(float(scores[best_runs[0]]), runs[best_runs[0]])]
    choices += _paired(pool, options, runs[uneven], oldest)
    if not forced:
        choices.append((without_long, long[:0]))
    best, chosen = min(choices, key=lambda choice: choice[0])
    if best < np.inf:
        return chosen
    return _within(pool, options, runs[int(has_oldest.argmax())], oldest)


def _within(pool: Pool, options: SteadyOptions, run: Int64Array, oldest: int) -> Int64Array:
    """The oldest of a run, and as many of the others, the shortest first, as a step holds."""
    others = run[run != oldest]
    held = pool.lengths[oldest] + pool.lengths[others].cumsum()
    return np.append(others[held <= options.step_cap], oldest)


def _evaluate_runs(pool: Pool, options: SteadyOptions, runs: Int64Array) -> tuple[_Outcomes, float]:
    """Outcomes of all runs, and the score of a step without long documents."""
    none = np.zeros((1, options.micro_batches), np.int64)
    outcomes = _Outcomes.of(
        pool,
        options,
        np.concatenate([pool.lengths[runs], none]),
        np.concatenate([pool.costs[runs], none]),
    )
    of_runs = _Outcomes(outcomes.imbalances[:-1], outcomes.scores[:-1])
    return of_runs, float(outcomes.scores[-1])


def _adjustments(
    pool: Pool,
    options: SteadyOptions,
    ages: Int64Array,
    has_oldest: npt.NDArray[np.bool_],
    sizes: Int64Array,
    oldest: int,
) -> Float64Array:
    """[choices] what is added to scores: less for long documents that have waited, more for leaving
    the oldest too few others to be planned with.

    Args:
        ages: [choices] age of the oldest document in each.
        has_oldest: [choices] whether the oldest of all long documents is in it.
        sizes: [choices] documents in each.
    """
    longest_wait = max(min(options.patience, _LONGEST_WAIT), 1)
    stranded = ~has_oldest & (len(pool.long) - sizes < options.micro_batches)
    added = _STRANDED * int(pool.ages[oldest]) * stranded - _AGE * ages
    return np.asarray(added / longest_wait, np.float64)


def _paired(
    pool: Pool, options: SteadyOptions, runs: Int64Array, oldest: int
) -> list[tuple[float, Int64Array]]:
    """Score and positions of each run that second long documents could be found for."""
    pairs = [pair for run in runs if (pair := _Paired.of(pool, options, run)) is not None]
    if not pairs:
        return []
    lengths = np.stack([pair.lengths for pair in pairs])
    costs = np.stack([pair.costs for pair in pairs])
    scores = _Outcomes.of(pool, options, lengths, costs).scores
    scores += _adjustments(
        pool,
        options,
        np.array([pool.ages[pair.members].max() for pair in pairs]),
        np.array([bool((pair.members == oldest).any()) for pair in pairs]),
        np.array([len(pair.members) for pair in pairs]),
        oldest,
    )
    return [(score, pair.members) for score, pair in zip(scores.tolist(), pairs)]


@dataclass(frozen=True)
class _Outcomes:
    """What steps would become with given long documents, once short ones are added."""

    imbalances: Float64Array
    """[steps] largest over mean cost of a micro-batch."""
    scores: Float64Array
    """[steps] in units of imbalance; lower is better."""

    @classmethod
    def of(
        cls, pool: Pool, options: SteadyOptions, lengths: Int64Array, costs: Int64Array
    ) -> _Outcomes:
        """
        Args:
            lengths: [steps, micro-batches] tokens of the long documents of each micro-batch.
            costs: [steps, micro-batches] their cost.
        """
        count = options.micro_batches
        tokens = lengths.sum(axis=1)  # [steps]
        supply = np.maximum(np.minimum(pool.tokens, options.step_cap - tokens), 0.0)  # [steps]
        # Heights are in tokens of short documents: a micro-batch that costs more stands higher.
        level, poured = water_fill(costs / pool.density, options.cap - lengths, supply)
        largest = np.maximum(level * pool.density, costs.max(axis=1))
        mean = np.maximum((costs.sum(axis=1) + poured * pool.density) / count, 1.0)
        imbalances = largest / mean
        missing = np.maximum(1 - (tokens + poured) / (count * options.context), 0.0)
        return cls(imbalances, imbalances - 1 + _NO_TOKENS * missing)


@dataclass(frozen=True)
class _Paired:
    """A run of long documents, some of them with a second one in the same micro-batch."""

    members: Int64Array
    lengths: Int64Array
    """[micro-batches] tokens."""
    costs: Int64Array
    """[micro-batches]"""

    @classmethod
    def of(cls, pool: Pool, options: SteadyOptions, run: Int64Array) -> _Paired | None:
        """The run with what `pair_long_documents` adds; None if that is nothing."""
        lengths, costs = pool.lengths[run], pool.costs[run]
        second = pair_long_documents(
            pool.lengths,
            pool.costs,
            run,
            pool.long,
            cap=options.cap,
            left=options.step_cap - int(lengths.sum()),
            short_tokens=pool.tokens,
            density=pool.density,
        )
        if not second:
            return None
        columns, added = np.array(list(second)), np.array(list(second.values()))
        lengths[columns] += pool.lengths[added]
        costs[columns] += pool.costs[added]
        return cls(np.concatenate([run, added]), lengths, costs)
