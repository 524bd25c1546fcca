"""How the tokens of a set of samples are spread over lengths, and the composition of a run.

A *token* is drawn here, not a sample, since the loss is a mean over tokens: the mean is the length
of the sample that a token is in, and the variance is that of this length. Moments of two sets give
those of both together, so that no length has to be kept or sent.

**Composition** is the variance within the steps of a run over what it would be if the same samples
were dealt at random to as many steps of equal size: 1 for random steps, 0 where each step holds one
length. Where the gradients of several steps are added up, an update counts as a step.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from evenstep.arrays import Float64Array

_NO_VARIANCE = 1e-12  # of the squared mean: below is rounding


@dataclass(frozen=True, eq=False)
class LengthMoments:
    """Sets of samples, one per element. All fields are arrays of one shape; an empty set is 0 in
    each."""

    samples: Float64Array
    tokens: Float64Array
    """The weight of every moment."""
    mean: Float64Array
    """Mean over tokens of the length l of their sample: sum of l² over sum of l."""
    second: Float64Array
    """Sum over tokens of the squared difference from `mean`."""
    third: Float64Array
    """Sum over tokens of its cube."""

    @classmethod
    def of(cls, lengths: npt.ArrayLike, offsets: npt.ArrayLike) -> LengthMoments:
        """Moments of sets stored one after the other.

        Args:
            lengths: [samples] tokens of each sample, set after set.
            offsets: [sets + 1] set s is ``lengths[offsets[s]:offsets[s + 1]]``; never empty.
        """
        flat, bounds = np.asarray(lengths, np.float64), np.asarray(offsets, np.int64)
        begins, samples = bounds[:-1], np.diff(bounds)
        tokens = np.add.reduceat(flat, begins)
        mean = np.add.reduceat(flat * flat, begins) / tokens
        away = flat - np.repeat(mean, samples)
        second = flat * away * away
        return cls(
            samples=samples.astype(np.float64),
            tokens=tokens,
            mean=mean,
            second=np.add.reduceat(second, begins),
            third=np.add.reduceat(second * away, begins),
        )

    @classmethod
    def empty(cls) -> LengthMoments:
        """One set without samples, of shape []."""
        return cls(*[np.zeros(()) for _ in fields(cls)])

    def together(self) -> LengthMoments:
        """The union of the sets along the first axis."""
        tokens = self.tokens.sum(axis=0)
        mean = (self.tokens * self.mean).sum(axis=0) / np.maximum(tokens, 1)
        shift = self.mean - mean
        return LengthMoments(
            samples=self.samples.sum(axis=0),
            tokens=tokens,
            mean=mean,
            second=(self.second + self.tokens * shift**2).sum(axis=0),
            third=(self.third + 3 * shift * self.second + self.tokens * shift**3).sum(axis=0),
        )

    def every(self, count: int) -> LengthMoments:
        """The union of each `count` sets in turn, and of those left over. Shape [sets]."""
        count = max(min(count, len(self.tokens)), 1)
        left = -len(self.tokens) % count
        columns = [np.pad(getattr(self, f.name), (0, left)) for f in fields(self)]
        return LengthMoments(*[c.reshape(-1, count).T for c in columns]).together()

    def along(self, other: LengthMoments) -> LengthMoments:
        """These sets, then those of `other`, along the first axis."""
        names = [f.name for f in fields(self)]
        pairs = [(getattr(self, name), getattr(other, name)) for name in names]
        return LengthMoments(*[np.concatenate([*map(np.atleast_1d, pair)]) for pair in pairs])

    @property
    def variance(self) -> Float64Array:
        """Variance over tokens of the length of their sample, in tokens squared."""
        return self.second / np.maximum(self.tokens, 1)


def composition(within: float, whole: LengthMoments, updates: float) -> float:
    """The composition of a run; 1 where random steps would have no variance either.

    Random steps have less variance within than the whole run, by the variance of their means. It is
    approximated from the moments, as an average over many shuffles would find it: within 1 % where
    a step holds 50 samples or more, within 10 % where it holds 8, and further off where a few
    samples hold most of the tokens.

    Args:
        within: sum over updates of `second`.
        whole: all updates together, of shape [].
        updates: how many they are.
    """
    samples, tokens, mean = float(whole.samples), float(whole.tokens), float(whole.mean)
    second = float(whole.second)
    if samples <= 1 or second <= _NO_VARIANCE * tokens * mean * mean:
        return 1.0
    # The mean of a random update is off by the sum of l (l - mean) over its tokens. The square of a
    # sample's term is `fourth` in sum, and the tokens that divide it are those of the sample and of
    # the others in its update.
    fourth = max(0.0, float(whole.third) + mean * second)  # sum of l² (l - mean)²
    others = (tokens / updates) * (1 - updates / samples)
    divided_by = fourth + second * others
    between = fourth * second / divided_by if divided_by else second
    between *= (samples - samples / updates) / (samples - 1)  # drawn without replacement
    random = second - between
    return within / random if random > _NO_VARIANCE * second else 1.0
