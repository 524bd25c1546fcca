"""Whether the learning rate can stay, and what two common rules give if updates hold more tokens.

These are hints that nothing applies: only training shows which rule holds, if any.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from evenstep.tools.advise.predict import Prediction

_SAME = 0.15
"""Updates whose tokens differ by a smaller share need no other learning rate."""


@dataclass(frozen=True, kw_only=True)
class LearningRateHint:
    """Updates of the recommended policy, against those of fixed batches."""

    baseline: Prediction
    chosen: Prediction

    @property
    def linear(self) -> float:
        """Factor of the linear rule: tokens of an update over those of the baseline."""
        return _tokens(self.chosen) / _tokens(self.baseline)

    @property
    def square_root(self) -> float:
        """Factor of the square-root rule."""
        return math.sqrt(self.linear)

    @property
    def text(self) -> str:
        """The hint in sentences."""
        fixed = self.baseline.options.get("batch_size")
        held = (
            f"Of each rank, an update has {self.baseline.accumulate:,} x batch_size={fixed:,} of "
            f"fixed-batch (--batch-size), or {self.chosen.accumulate:,} x a group of "
            f"{self.chosen.policy}: "
            f"{_samples(self.baseline):,.0f} and {_samples(self.chosen):,.0f} samples, "
            f"{_tokens(self.baseline):,.0f} and {_tokens(self.chosen):,.0f} tokens on all ranks."
        )
        if abs(self.linear - 1) <= _SAME:
            return (
                f"{held} The learning rate, its schedule and the number of updates can stay. What "
                "changes: batch_size and gradient accumulation are no longer yours to set, and the "
                "optimizer steps where step.ends_update says so."
            )
        return (
            f"{held} From a learning rate that suits the fixed "
            f"batches, the linear rule gives {self.linear:.2f} times that rate, and the "
            f"square-root rule to {self.square_root:.2f} times. Nothing applies either: compare "
            "them in training."
        )

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "baseline": _update(self.baseline),
            "recommended": _update(self.chosen),
            "linear_rule": self.linear,
            "square_root_rule": self.square_root,
            "text": self.text,
        }


def _samples(one: Prediction) -> float:
    return one.figures["samples_per_update"].value


def _tokens(one: Prediction) -> float:
    return one.figures["tokens_per_update"].value


def _update(one: Prediction) -> dict[str, Any]:
    return {
        "policy": one.policy,
        "samples_per_update": _samples(one),
        "tokens_per_update": _tokens(one),
    }
