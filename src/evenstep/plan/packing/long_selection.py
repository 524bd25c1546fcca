"""Which long documents go in an iteration: the choice behind `steady`.

A document is *long* if it is more work than a micro-batch without long documents. Each iteration
tries to go without them, and with every run of long documents of neighbouring length, one for each
micro-batch. How level short documents would make it, under the caps on tokens, is computed, not
tried: see `pouring`. For the few best runs it is also tried to add a second long document where a
micro-batch could not be levelled otherwise. An iteration that would be uneven or short of tokens
scores badly, one with documents that have waited long scores well.

Invariants: a choice never holds more tokens than the iteration may, and a long document that has
waited as long as it should is in it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from evenstep.arrays import Float64Array, Int64Array
from evenstep.plan.packing.long_pairs import second_documents
from evenstep.plan.packing.options import SteadyOptions
from evenstep.plan.packing.outliers import auto_thresholds
from evenstep.plan.packing.water_fill import pour

__all__ = ["Pool", "choose_long"]


_TRIED = 4
"""Runs for which second long documents are tried."""
_LEVEL = 0.003
"""Imbalance that is not worth a second long document."""
_TOKENS = 0.3
"""Imbalance that is as bad as an iteration without any tokens."""
_AGE = 0.05
"""Imbalance that is accepted for long documents which have waited as long as they may."""
_STRANDED = 0.2
"""Imbalance that is accepted rather than leave such a document without enough others to go with."""


@dataclass(frozen=True)
class Pool:
    """The documents that wait, taken apart."""

    lengths: Int64Array
    ages: Int64Array
    works: Int64Array
    long: Int64Array
    """Positions of long documents, the shortest first."""
    short: Int64Array
    """Positions of the others, the oldest first."""
    short_tokens: Int64Array
    """[short] tokens of each and all before it."""
    short_works: Int64Array
    """[short] the same for work."""

    @classmethod
    def of(cls, lengths: Int64Array, ages: Int64Array, options: SteadyOptions) -> Pool:
        works = options.workload.of_documents(lengths)
        thresholds = options.thresholds or auto_thresholds(
            lengths, context=options.context, queues=1, workload=options.workload
        )
        is_long = lengths >= (thresholds[0] if thresholds else options.cap + 1)
        long, short = np.flatnonzero(is_long), np.flatnonzero(~is_long)
        return cls(
            lengths=lengths,
            ages=ages,
            works=works,
            long=long[np.argsort(lengths[long], kind="stable")],
            short=short,
            short_tokens=lengths[short].cumsum(),
            short_works=works[short].cumsum(),
        )

    @property
    def tokens(self) -> float:
        """Of the short documents."""
        return float(self.short_tokens[-1]) if len(self.short) else 0.0

    @property
    def density(self) -> float:
        """Work per token of the short documents."""
        return float(self.short_works[-1]) / self.tokens if len(self.short) else 1.0


def choose_long(pool: Pool, options: SteadyOptions) -> Int64Array:
    """Positions of the long documents that go in this iteration."""
    count = options.micro_batches
    long = pool.long
    if not len(long):
        return long
    oldest = int(long.min())
    forced = not len(pool.short) or int(pool.ages[oldest]) >= options.patience
    if len(long) < count:
        return _within(pool, options, long, oldest) if forced else long[:0]
    runs = long[np.arange(len(long) - count + 1)[:, None] + np.arange(count)]
    nothing = np.zeros((1, count), np.int64)
    tried = _Outcomes.of(
        pool,
        options,
        np.concatenate([pool.lengths[runs], nothing]),
        np.concatenate([pool.works[runs], nothing]),
    )
    scores, has_oldest = tried.scores[:-1], (runs == oldest).any(axis=1)
    sizes = np.full(len(runs), count)
    scores += _merits(pool, options, pool.ages[runs].max(axis=1), has_oldest, sizes, oldest)
    scores[pool.lengths[runs].sum(axis=1) > options.step_cap] = np.inf
    if forced:
        scores[~has_oldest] = np.inf
    first = np.argsort(scores, kind="stable")[:_TRIED].tolist()
    pairs = [
        _partners(pool, options, runs[run])
        for run in first
        if scores[run] < np.inf and tried.imbalances[run] > 1 + _LEVEL
    ]
    choices: list[tuple[float, Int64Array]] = [(float(scores[first[0]]), runs[first[0]])]
    choices += _scored(pool, options, [pair for pair in pairs if pair], oldest)
    if not forced:
        choices.append((float(tried.scores[-1]), long[:0]))
    best, chosen = min(choices, key=lambda choice: choice[0])
    if best < np.inf:
        return chosen
    return _within(pool, options, runs[int(has_oldest.argmax())], oldest)


def _within(pool: Pool, options: SteadyOptions, run: Int64Array, oldest: int) -> Int64Array:
    """The oldest of a run, and of the others, the shortest first, as many as an iteration holds."""
    others = run[run != oldest]
    held = pool.lengths[oldest] + pool.lengths[others].cumsum()
    return np.append(others[held <= options.step_cap], oldest)


def _merits(
    pool: Pool,
    options: SteadyOptions,
    ages: Int64Array,
    has_oldest: npt.NDArray[np.bool_],
    sizes: Int64Array,
    oldest: int,
) -> Float64Array:
    """[choices] what is added to scores: less for long documents that have waited, more for leaving
    the oldest with too few others to go with.

    Args:
        ages: [choices] of the oldest document in each.
        has_oldest: [choices] whether the oldest of all long documents is in it.
        sizes: [choices] documents in each.
    """
    most = max(min(options.patience, 16), 1)
    stranded = ~has_oldest & (len(pool.long) - sizes < options.micro_batches)
    return np.asarray(
        (_STRANDED * int(pool.ages[oldest]) * stranded - _AGE * ages) / most, np.float64
    )


def _scored(
    pool: Pool, options: SteadyOptions, pairs: list[_Pairs], oldest: int
) -> list[tuple[float, Int64Array]]:
    """Score and members of each."""
    if not pairs:
        return []
    lengths, works = (np.stack([getattr(p, name) for p in pairs]) for name in ("lengths", "works"))
    scores = _Outcomes.of(pool, options, lengths, works).scores
    scores += _merits(
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
    """What iterations with given long documents would become."""

    imbalances: Float64Array
    """[iterations] largest over mean work of a micro-batch."""
    scores: Float64Array
    """[iterations] the less the better, in units of imbalance."""

    @classmethod
    def of(
        cls,
        pool: Pool,
        options: SteadyOptions,
        lengths: Int64Array,
        works: Int64Array,
    ) -> _Outcomes:
        """
        Args:
            lengths: [iterations, micro-batches] tokens of the long documents of each micro-batch.
            works: of the same shape; their work.
        """
        count = options.micro_batches
        held, done = lengths.sum(axis=1), works.sum(axis=1)
        supply = np.maximum(np.minimum(pool.tokens, options.step_cap - held), 0.0)
        level, poured = pour(works / pool.density, options.cap - lengths, supply)
        largest = np.maximum(level * pool.density, works.max(axis=1))
        mean = np.maximum((done + poured * pool.density) / count, 1.0)
        imbalances = largest / mean
        missing = np.maximum(1 - (held + poured) / (count * options.context), 0.0)
        return cls(imbalances, imbalances - 1 + _TOKENS * missing)


@dataclass(frozen=True)
class _Pairs:
    """A run of long documents, some of them with a second one in the same micro-batch."""

    members: Int64Array
    lengths: Int64Array
    """[micro-batches] tokens."""
    works: Int64Array


def _partners(pool: Pool, options: SteadyOptions, run: Int64Array) -> _Pairs | None:
    """A run with `second_documents`; None where there are none."""
    lengths, works = pool.lengths[run], pool.works[run]
    second = second_documents(
        pool.lengths,
        pool.works,
        run,
        pool.long,
        cap=options.cap,
        left=options.step_cap - int(lengths.sum()),
        short_tokens=pool.tokens,
        density=pool.density,
    )
    if not second:
        return None
    places, added = np.array(list(second)), np.array(list(second.values()))
    lengths[places] += pool.lengths[added]
    works[places] += pool.works[added]
    return _Pairs(np.concatenate([run, added]), lengths, works)
