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
        self._images = self._patches = 0
        self._largest = self._mean = 0.0  # cost of the ranks, summed over steps
        self._measured: list[float] = []
        self._composition = Composition()

    def add(self, step: StepInfo) -> None:
        """Takes a step that was trained on, in order."""
        self.tokens += step.global_tokens
        self._steps += 1
        self._tokens += step.global_tokens
        self._padded += step.global_padded_tokens
        self._images += step.global_images
        self._patches += step.global_patches
        self._composition.add(step)
        if not step.ends_wait:
            return
        self._largest += float(step.waits.cost.max())
        self._mean += float(step.waits.cost.mean())
        if step.imbalance_measured is not None:
            self._measured.append(step.imbalance_measured)

    def take(self) -> dict[str, float]:
        """The values since the last call, by name; empty if there was no step.

        - ``padding``: 1 - real tokens / tokens as computed
        - ``imbalance``: largest cost of a rank over the mean cost, summed over steps; over updates
          that have ended where ranks wait at their end
        - ``imbalance_measured``: see `StepInfo.imbalance_measured`; mean, once it is known
        - ``composition``: see `evenstep.batch.Composition`; of updates that have ended
        - ``tokens``: real tokens since the beginning, ``tokens_per_step`` since the last call
        - ``images_per_step``, ``patches_per_step``: where there were images that are counted
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
        if self._measured:
            values["imbalance_measured"] = sum(self._measured) / len(self._measured)
        if self._images:
            values["images_per_step"] = self._images / self._steps
            values["patches_per_step"] = self._patches / self._steps
        self._clear()
        return values
