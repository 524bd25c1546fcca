"""What is logged beside the loss: padding, imbalance, composition and tokens of the steps since the
last log."""

from __future__ import annotations

from evenstep.batch.composition import Composition
from evenstep.batch.step_info import StepInfo


class StepValues:
    """Sums steps up between two logs. All ranks find the same values."""

    def __init__(self) -> None:
        self.tokens = 0
        """Real tokens of all ranks since the beginning."""
        self._clear()

    def _clear(self) -> None:
        self._tokens = self._padded = self._steps = 0
        self._largest = self._mean = 0.0  # costs
        self._composition = Composition()

    def add(self, step: StepInfo) -> None:
        """Takes a step that was trained on, in order."""
        self.tokens += step.global_tokens
        self._steps += 1
        self._tokens += step.global_tokens
        self._padded += step.global_padded_tokens
        self._largest += float(step.totals.cost.max())
        self._mean += float(step.totals.cost.mean())
        self._composition.add(step)

    def take(self) -> dict[str, float]:
        """The values since the last call, by name; empty if there was no step.

        - ``padding``: 1 - real tokens / tokens as computed
        - ``imbalance``: largest cost of a rank over the mean cost, summed over steps
        - ``composition``: see `evenstep.Composition`; of updates that have ended
        - ``tokens``: real tokens since the beginning, ``tokens_per_step`` since the last call
        """
        if not self._steps:
            return {}
        values = {
            "padding": 1.0 - self._tokens / max(self._padded, 1),
            "imbalance": self._largest / self._mean if self._mean else 1.0,
            "composition": self._composition.value,
            "tokens": self.tokens,
            "tokens_per_step": self._tokens / self._steps,
        }
        self._clear()
        return values
