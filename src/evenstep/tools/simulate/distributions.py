"""Named length distributions, to run policies over when no lengths have been recorded.

A distribution is a function from levels in (0, 1) to lengths; sampling feeds it one level per
stratum ``[i/count, (i+1)/count)``, in random order. So every draw is a shuffled data set of `count`
samples whose mean and quantiles are those of the distribution, whatever the seed; the seed decides
the order, as it does with real data.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist
from types import MappingProxyType
from typing import Protocol

import numpy as np

from evenstep.arrays import Float64Array, Int64Array
from evenstep.errors import ConfigurationError
from evenstep.plan.rng import RandomStream, generator
from evenstep.plan.value_checks import check_at_least


class Quantiles(Protocol):
    """A quantile function."""

    def __call__(self, levels: Float64Array) -> Float64Array:
        """[samples] lengths at `levels`, each between 0 and 1 exclusive."""
        ...

    @property
    def mean(self) -> float: ...


@dataclass(frozen=True)
class LogLinear:
    """Quantile function through given knots; the logarithm of the length is linear between them.

    Two knots, at levels 0 and 1, make a log-uniform distribution.
    """

    knots: tuple[tuple[float, float], ...]
    """(level, length) pairs, both increasing, from level 0 to level 1."""

    def __call__(self, levels: Float64Array) -> Float64Array:
        at, lengths = np.array(self.knots).T
        logs: Float64Array = np.interp(levels, at, np.log(lengths))
        return np.exp(logs)

    @property
    def mean(self) -> float:
        at, lengths = np.array(self.knots).T
        # The mean of an exponential between two values is their logarithmic mean.
        return float(np.sum(np.diff(at) * np.diff(lengths) / np.diff(np.log(lengths))))


@dataclass(frozen=True)
class LogNormal:
    """Quantile function of a log-normal distribution."""

    median: float
    sigma: float

    def __call__(self, levels: Float64Array) -> Float64Array:
        normal = np.fromiter(map(NormalDist().inv_cdf, levels.tolist()), np.float64, len(levels))
        return self.median * np.exp(self.sigma * normal)

    @property
    def mean(self) -> float:
        return float(self.median * math.exp(self.sigma**2 / 2))


@dataclass(frozen=True, kw_only=True)
class Distribution:
    """A mixture of quantile functions, rounded to whole tokens and clipped."""

    parts: tuple[tuple[float, Quantiles], ...]
    """(share of the samples, quantile function) pairs; shares add up to 1."""
    shortest: int
    longest: int
    max_tokens: int
    """Default token budget of commands that run on this distribution."""

    @property
    def mean(self) -> float:
        """Mean length, without rounding and clipping."""
        return sum(share * part.mean for share, part in self.parts)

    def lengths(self, levels: Float64Array) -> Int64Array:
        """[samples] int64 lengths at `levels`. Parts divide the levels by their shares."""
        lengths = np.empty(len(levels), np.float64)
        begin = 0.0
        for index, (share, part) in enumerate(self.parts):
            end = 1.0 if index == len(self.parts) - 1 else begin + share
            inside = (levels >= begin) & (levels < end)
            # Strictly between 0 and 1, where every quantile function is finite.
            within = np.clip((levels[inside] - begin) / (end - begin), 1e-12, 1 - 1e-12)
            lengths[inside] = part(within)
            begin = end
        return np.clip(np.rint(lengths), self.shortest, self.longest).astype(np.int64)


def _through(*knots: tuple[float, float], max_tokens: int) -> Distribution:
    return Distribution(
        parts=((1.0, LogLinear(knots)),),
        shortest=int(knots[0][1]),
        longest=int(knots[-1][1]),
        max_tokens=max_tokens,
    )


# Knots at levels 0.5, 0.95, 0.99 and 1 are the median, P95, P99 and maximum of ODB's Table 10. The
# other lengths were solved for: the smoothest curve (least sum of squared changes of slope between
# knots, in log length over the normal quantile of the level) that has exactly Table 10's mean and
# section 3.1's CV, rounded to whole tokens.
_LEVELS = (0.0, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999, 1.0)
_ULTRACHAT = (189, 349, 492, 590, 799, 1104, 1452, 1890, 2239, 3065, 3936, 4471)
_LLAVA = (265, 312, 343, 362, 400, 463, 576, 724, 814, 914, 1107, 1260)
_SHAREGPT4O = (501, 595, 657, 698, 792, 977, 1366, 2661, 4584, 8937, 9877, 12110)

# OVERLORD's section 2.3 says that in COYO-700M 98.23 % of the texts have at most 64 tokens, and
# that the longest 1.62 % hold 9.3 % of all tokens. (It calls those the texts over 64 tokens, which
# are 1.77 %; so the two shares are taken to be of different texts.) The data set's own page adds
# the shortest, mean and longest in tokens of GPT-2: 3, 17.24 and 1,523. The knot at 0.9823 lies
# between 64 and 65, as lengths are rounded; the others are the smoothest, as above, that have this
# mean and this share.
_COYO_TEXT = (
    *((0.0, 3), (0.01, 4.55), (0.05, 5.41), (0.1, 6.15), (0.25, 8.19), (0.5, 12.24)),
    *((0.75, 19.88), (0.9, 32.53), (0.95, 44.19), (0.9823, 64.5), (0.9838, 66.2), (0.99, 75.03)),
    *((0.995, 90.69), (0.999, 149.29), (0.9999, 329.26), (1.0, 1523)),
)
# The paper gives no figures of images. The data set's page has histograms of width and height, in
# bins of 100 pixels from 200 on; each knot is the mean of their cumulated shares at one size, taken
# for an image as wide as it is high, in cells of 28 x 28 pixels. The last one covers all that
# the histograms leave out, and makes the mean of width and height 581, as the page says.
_COYO_IMAGE = (
    *((0.0, 51), (0.203, 115), (0.397, 204), (0.545, 319), (0.643, 459), (0.755, 625)),
    *((0.812, 816), (0.861, 1033), (0.888, 1276), (0.938, 1543), (0.9636, 2156), (0.97, 2870)),
    *((0.985, 5625), (1.0, 16_384)),
)

# Not published: a log-normal distribution (sigma 0.85) that the limit on new tokens cuts off.
_ROLLOUTS = (102, 277, 494, 673, 1127, 2000, 3548, 5945, 8096)

DISTRIBUTIONS: Mapping[str, Distribution] = MappingProxyType(
    {
        # Text chat: mean 1,196, CV 0.48.
        "ultrachat": _through(*zip(_LEVELS, _ULTRACHAT), max_tokens=12_288),
        # Image and text, nearly uniform: mean 508, CV 0.29.
        "llava": _through(*zip(_LEVELS, _LLAVA), max_tokens=12_288),
        # Image and text, long tail: mean 1,511, CV 1.00.
        "sharegpt4o": _through(*zip(_LEVELS, _SHAREGPT4O), max_tokens=12_288),
        # Short answers about images, with captions and dialogues (ODB, section 3.7). The share of
        # short samples is the published one; median and sigma are solved for mean 789 and CV 0.80.
        "mm-mix": Distribution(
            parts=((0.37, LogLinear(((0.0, 64), (1.0, 512)))), (0.63, LogNormal(1007.1, 0.47216))),
            shortest=64,
            longest=8192,
            max_tokens=8192,
        ),
        # Most documents are short, 1.8 % over 16,384, and a few fill the whole context window
        # (WLB-LLM, Figure 3).
        "pretrain-128k": Distribution(
            parts=(
                (0.982, LogNormal(2500, 0.8)),
                (0.018, LogLinear(((0.0, 16_384), (1.0, 131_072)))),
            ),
            shortest=1,
            longest=131_072,
            max_tokens=131_072,
        ),
        # Answers of a model that reasons: median 2,000, 0.7 % cut off at 16,384.
        "rollouts": _through(
            *zip(_LEVELS[:9], _ROLLOUTS),
            *((0.98, 11_460), (0.993, 16_383.6), (1.0, 16_384)),
            max_tokens=32_768,
        ),
        # Captions from the web, short except for a few: mean 17, 1.8 % over 64.
        "coyo-text": _through(*_COYO_TEXT, max_tokens=2048),
        # Images from the web in cells of 28 pixels: mean 645, CV 2.14.
        "coyo-image": _through(*_COYO_IMAGE, max_tokens=16_384),
    }
)


def sample_lengths(name: str, count: int, seed: int = 0) -> Int64Array:
    """Draws lengths from a named distribution.

    Args:
        name: a key of `DISTRIBUTIONS`.
        count: samples to draw, at least 1.
        seed: equal seeds give the same lengths in the same order.

    Returns:
        [count] int64 lengths in tokens.

    Raises:
        ConfigurationError: unknown name, or a count that is not positive.
    """
    if name not in DISTRIBUTIONS:
        raise ConfigurationError(
            f"unknown length distribution {name!r}; known are {', '.join(DISTRIBUTIONS)}"
        )
    check_at_least(1, count=count)
    random = generator(seed, RandomStream.SIMULATED_LENGTHS)
    levels = (random.permutation(count) + random.random(count)) / count
    return DISTRIBUTIONS[name].lengths(levels)
