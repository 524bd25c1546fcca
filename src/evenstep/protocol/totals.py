"""What ranks train on, in columns: of one rank's steps, one step's ranks, or all of a round."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from evenstep.arrays import Float64Array, Int64Array
from evenstep.plan.length_moments import LengthMoments


@dataclass(frozen=True, eq=False)
class Totals:
    """Arrays of one shape; zero for a rank that runs a filler."""

    samples: Int64Array
    tokens: Int64Array
    """Real tokens."""
    padded_tokens: Int64Array
    """Tokens computed, padding included; equal to `tokens` where groups are packed."""
    supervised_tokens: Int64Array
    """Tokens that contribute to the loss."""
    cost: Float64Array
    """In the unit of the policy's cost."""
    length_mean: Float64Array
    """Mean over tokens of the length of their sample."""
    length_deviation: Float64Array
    """Standard deviation over tokens of that length."""
    length_skew: Float64Array
    """Cube root of the mean over tokens of the cubed difference from `length_mean`."""
    patches: Int64Array = None  # type: ignore[assignment]
    """Vision patches; 0, as in the next two, where the policy does not count them."""
    images: Int64Array = None  # type: ignore[assignment]
    """Images, videos and sounds."""
    vision_cost: Float64Array = None  # type: ignore[assignment]
    """What of `cost` is of the vision tower."""
    by_source: Int64Array = None  # type: ignore[assignment]
    """[..., 2 x sources] samples of each source of a mixture, then tokens of each; of none for any
    other dataset."""

    def __post_init__(self) -> None:
        for name, like in (("patches", "samples"), ("images", "samples"), ("vision_cost", "cost")):
            if getattr(self, name) is None:
                object.__setattr__(self, name, np.zeros_like(getattr(self, like)))
        if self.by_source is None:
            none = np.zeros((*np.shape(self.samples), 0), np.int64)
            object.__setattr__(self, "by_source", none)

    @property
    def text_cost(self) -> Float64Array:
        """What of `cost` is of the language model, whose tokens may stand for images."""
        return np.maximum(self.cost - self.vision_cost, 0.0)

    @property
    def moments(self) -> LengthMoments:
        """How tokens are spread over lengths."""
        tokens = self.tokens.astype(np.float64)
        return LengthMoments(
            samples=self.samples.astype(np.float64),
            tokens=tokens,
            mean=self.length_mean,
            second=tokens * self.length_deviation**2,
            third=tokens * self.length_skew**3,
        )
