"""Costs from measured times: `fit`, of groups that were timed; `fit_times`, of the steps of a run.

What a token, a pair of tokens and a patch cost follows from how long steps took. A step lasts as
long as its slowest rank, and only that time is seen. So for each pair of ratios, of a pair and of a
patch to a token, the slowest rank of every step is found anew, and a line is fitted through the
times: its slope is the cost of a token, its constant what a group costs besides. The ratios whose
line fits best are taken. They are looked for in a coarse grid first, then around the best, finer
and finer. Evaluations and checkpoints between steps weigh little, as the fit is robust.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import numpy.typing as npt

from evenstep.arrays import Float64Array, Int64Array
from evenstep.cost.models import FittedCost
from evenstep.errors import ConfigurationError

_ROUNDING = 1e-24
"""Squared errors that differ by less are the same."""


def fit(
    lengths: npt.ArrayLike, seconds: npt.ArrayLike, *, samples: npt.ArrayLike = 1
) -> FittedCost:
    """Fits ``seconds = per_group + per_token * n * l + per_pair * n * l²`` with no negative
    coefficient, minimising relative error, so that short groups count as much as long ones.

    Args:
        lengths: [measurements] tokens per sample of each timed group.
        seconds: [measurements] measured time of each group, positive.
        samples: [measurements] or scalar; samples per timed group.

    Raises:
        ConfigurationError: fewer than three measurements, values that are not positive and finite,
            or arrays that do not match.
    """
    length = np.atleast_1d(np.asarray(lengths, dtype=np.float64))
    second = np.atleast_1d(np.asarray(seconds, dtype=np.float64))
    sample = np.asarray(samples, dtype=np.float64)
    if length.shape != second.shape or length.ndim != 1 or len(length) < 3:
        raise ConfigurationError(
            f"need at least three (length, seconds) pairs of equal number, got {length.shape} "
            f"lengths and {second.shape} seconds"
        )
    if sample.shape not in ((), length.shape):
        raise ConfigurationError(
            f"samples of shape {sample.shape} must be one number, or one for each of the "
            f"{len(length)} lengths"
        )
    sample = np.broadcast_to(sample, length.shape)
    for name, values in (("lengths", length), ("seconds", second), ("samples", sample)):
        wrong = values[~(np.isfinite(values) & (values > 0))]
        if len(wrong):
            raise ConfigurationError(f"{name} must be positive and finite, got {wrong[0]}")
    tokens = sample * length
    columns = np.stack([np.ones_like(length), tokens, tokens * length], axis=1) / second[:, None]
    scale = columns.max(axis=0)  # columns differ by many orders of magnitude
    solution = not_negative(columns / scale, np.ones_like(length)) / scale
    per_group, per_token, per_pair = (float(value) for value in solution)
    return FittedCost(per_group=per_group, per_token=per_token, per_pair=per_pair)


def not_negative(columns: Float64Array, target: Float64Array) -> Float64Array:
    """The least-squares solution without a negative value: of several, that with fewest terms, and
    among these the first.

    With few terms all subsets can be tried: it is the best one whose terms are all positive.

    Args:
        columns: [measurements, terms] positive, of similar size.
        target: [measurements] positive, about 1.

    Returns:
        [terms]
    """
    terms, least = columns.shape[1], np.inf
    best = np.zeros(terms)
    for subset in (list(s) for n in range(terms) for s in combinations(range(terms), n + 1)):
        solution = np.linalg.lstsq(columns[:, subset], target, rcond=None)[0]
        error = columns[:, subset] @ solution - target
        if (solution >= 0).all() and error @ error < least - _ROUNDING:
            best, least = np.zeros(terms), float(error @ error)
            best[subset] = solution
    return best


_PAIRS = 1 / np.geomspace(300_000, 1_000, 12)
_PATCHES = np.geomspace(0.01, 10, 14)
"""Cost of all patches of a run over that of all tokens."""
_FINER = np.exp(np.outer(np.log(_PAIRS[1] / _PAIRS[0]) / 3.0 ** np.arange(1, 4), np.arange(-3, 4)))
"""[rounds, 7] how far, as factors, ratios are looked for around the best."""
_NOISE = 0.02
"""Share of a step's time by which times scatter."""
_MOST_CONSTANT = 0.15
"""Share of a step's time that what it costs besides may have."""
_USUAL_CONSTANT = 0.05
"""Share that it is expected to have, where all steps have as many tokens and times cannot tell."""
_ROUNDS = 4
_PRIOR = 0.4
"""How far, as a logarithm, ratios are expected from those of the cost in use."""


@dataclass(frozen=True, kw_only=True)
class StepTimes:
    """Steps that were timed: each by itself, or those of an update together."""

    loads: Float64Array
    """[4, waits, ranks] tokens as computed, pairs, patches and groups of each rank between one wait
    for the others and the next: see `evenstep.batch.step_info`."""
    begins: Int64Array
    """[times] the first wait of each."""
    seconds: Float64Array
    """[times]"""

    def slowest(self, ratios: Float64Array) -> Float64Array:
        """[candidates, times] tokens of the slowest ranks.

        Args:
            ratios: [candidates, 2] of a pair and a patch to a token.
        """
        tokens, pairs, patches, _ = self.loads
        found = np.empty((len(ratios), len(self.begins)))
        for row, (pair, patch) in zip(found, ratios.tolist()):
            costs = tokens + pair * pairs
            if patch:
                costs += patch * patches
            row[:] = np.add.reduceat(costs.max(axis=1), self.begins)
        return found


@dataclass(frozen=True, kw_only=True)
class FittedTimes:
    """What times tell: seconds of a group, a token, a pair and a patch."""

    per_group: float
    per_token: float
    ratios: tuple[float, float]
    """Of a pair and of a patch to a token."""
    error: float
    """Median of how far times are from it, as a share."""
    surer: float
    """How much likelier it is than the ratios in use: the logarithm of the ratio."""

    def imbalance(self, loads: Float64Array) -> float:
        """Time of the slowest ranks over the mean.

        Args:
            loads: [4, ..., ranks] as of `StepTimes`.
        """
        return imbalance_at((1.0, *self.ratios, self.per_group / self.per_token), loads)


def imbalance_at(costs_of: Sequence[float], loads: Float64Array) -> float:
    """Cost of the slowest ranks over the mean.

    Args:
        costs_of: a token, a pair, a patch and a group.
        loads: [4, ..., ranks] as of `StepTimes`.
    """
    costs = np.tensordot(costs_of, loads, 1)
    return float(costs.max(axis=-1).sum() / costs.mean(axis=-1).sum())


def fit_times(times: StepTimes, used: tuple[float, float]) -> FittedTimes:
    """The cost that explains times best.

    Args:
        times: some 100 or more.
        used: ratios of the cost in use, of a pair and of a patch to a token; 0 if it has none. That
            of a patch stays where there are none.
    """
    tokens, _, patches, _ = times.loads.sum(axis=(1, 2)).tolist()
    axes = np.append(0.0, _PAIRS), np.array([used[1]])
    if patches:
        axes = axes[0], np.append(0.0, _PATCHES * tokens / patches)
    found = _Candidates(times, np.vstack([_grid(*axes), used]), used)
    surer = float(found.losses[-1])
    for factors in _FINER:
        best = found.best
        around = (best[:1] * factors, best[1:] * factors if patches else best[1:])
        found = _Candidates(times, np.vstack([best, _grid(*map(np.unique, around))]), used)
    place = found.place
    pair, patch = found.best.tolist()
    return FittedTimes(
        per_group=float(found.constants[place]),
        per_token=float(found.slopes[place]),
        ratios=(pair, patch),
        error=float(np.median(np.abs(found.missed[place]))),
        surer=surer - float(found.losses[place]),
    )


def _grid(pairs: Float64Array, patches: Float64Array) -> Float64Array:
    """[candidates, 2] each of `pairs` with each of `patches`."""
    return np.stack(np.meshgrid(pairs, patches, indexing="ij"), axis=-1).reshape(-1, 2)


class _Candidates:
    """Lines through the times, for some ratios."""

    def __init__(self, times: StepTimes, ratios: Float64Array, used: tuple[float, float]) -> None:
        """
        Args:
            ratios: [candidates, 2]
        """
        x = times.slowest(ratios) / times.seconds
        v = np.add.reduceat(times.loads[3].max(axis=1), times.begins) / times.seconds
        self.slopes, self.constants = _lines(x, v)
        self.missed = self.slopes[:, None] * x + self.constants[:, None] * v - 1
        """[candidates, times]"""
        self.losses = np.log1p((self.missed / (1.5 * _NOISE)) ** 2).sum(axis=1)
        for column, expected in zip(ratios.T, used):
            if expected > 0:
                away = np.log(np.maximum(column, 1e-9) / expected) / _PRIOR
                self.losses += np.minimum(away**2 / 2, 20.0)
        self.place = int(self.losses.argmin())
        self.best: Float64Array = ratios[self.place]


def _lines(x: Float64Array, v: Float64Array) -> tuple[Float64Array, Float64Array]:
    """[candidates] slope and constant of each, by weighted least squares of ``slope x + constant
    v`` to 1, in which what is far off counts little.

    Args:
        x: [candidates, times] tokens of the slowest ranks by the time.
        v: [times] groups by the time.
    """
    expected = (_NOISE / _USUAL_CONSTANT * v.mean()) ** 2
    weights = np.ones_like(x)
    slopes = constants = np.zeros(len(x))
    for _ in range(_ROUNDS):
        xx, xv, vv = (weights * x * x).sum(1), (weights * x * v).sum(1), (weights * v * v).sum(1)
        vv += expected
        sx, sv = (weights * x).sum(1), (weights * v).sum(1)
        constants = (sv * xx - sx * xv) / np.maximum(xx * vv - xv * xv, 1e-300)
        constants = np.clip(constants, 0.0, _MOST_CONSTANT * sv / vv)
        slopes = (sx - constants * xv) / xx
        missed = np.abs(slopes[:, None] * x + constants[:, None] * v - 1)
        scale = 1.4826 * np.median(missed, axis=1) + 1e-9
        weights = 1 / (1 + (missed / (3 * scale[:, None])) ** 2)
    return slopes, constants
