"""How many steps a pass has: known in advance under `FixedBatch`, estimated under the others."""

from __future__ import annotations

from evenstep.batch.step_info import StepInfo
from evenstep.loader.resume.epochs import Epochs
from evenstep.plan.policies.fixed_batch import FixedBatch


class StepCount:
    """The number of steps of one loader's passes."""

    def __init__(self, epochs: Epochs) -> None:
        self._epochs = epochs
        self._samples = self._steps = 0  # received so far; samples of all ranks

    def note(self, step: StepInfo) -> None:
        """Counts a step that was received."""
        self._samples += step.global_samples
        self._steps += 1

    def exact(self, world_size: int) -> int:
        """Steps of a whole pass.

        Raises:
            TypeError: the number depends on lengths that are not known yet.
        """
        policy = self._epochs.policy
        if not isinstance(policy, FixedBatch):
            raise TypeError(
                f"the number of steps under {type(policy).__name__} depends on lengths that are "
                "known only as samples are prepared; loader.estimated_steps estimates it"
            )
        size = self._epochs.share_size(world_size)
        if size is None:
            raise TypeError("the number of samples is unknown, so the number of steps is, too")
        return size // policy.batch_size if policy.drop_last else -(-size // policy.batch_size)

    def estimate(self, world_size: int) -> int | None:
        """From the mean samples per step so far; None before the first step, and where the number
        of samples is unknown."""
        samples = self._epochs.samples(world_size)
        if samples is None or not self._samples:
            return None
        return max(1, round(samples * self._steps / self._samples))
