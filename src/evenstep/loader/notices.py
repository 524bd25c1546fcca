"""What a loader says about its pass: one line each, on the logger "evenstep"."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from evenstep.batch.composition import Composition
from evenstep.batch.step_info import StepInfo
from evenstep.loader.batcher.progress import BadSample
from evenstep.loader.options import LoaderOptions
from evenstep.plan.policies.fixed_batch import FixedBatch
from evenstep.plan.policy import Policy
from evenstep.plan.update_size import GROUPS

logger = logging.getLogger("evenstep")

LEAST_COMPOSITION = 0.9
"""Below it, updates are so alike in length that training on them is worth a warning."""
_UPDATES = 32
"""Updates after which composition is known well enough, and where they have few groups:"""
_FEW_UPDATES = 2


class Notices:
    """Of one loader."""

    def __init__(self, policy: Policy) -> None:
        self.skipped: list[BadSample] = []
        self._told_of_memory = False
        mixed = policy.packed or policy.in_parts or isinstance(policy, FixedBatch)
        self._composition = None if mixed else Composition()

    def bad(self, samples: Iterable[BadSample]) -> None:
        for sample in samples:
            logger.warning("skipped a sample in epoch %d: %s", sample.epoch, sample.reason)
            self.skipped.append(sample)

    def memory(self, limit: int | None, options: LoaderOptions) -> None:
        """Warns, once, of windows that are smaller than the user wants.

        Args:
            limit: samples of a window that all ranks have memory for.
        """
        size = options.buffer_size
        if isinstance(size, str) or limit is None or limit >= size or self._told_of_memory:
            return
        self._told_of_memory = True
        logger.warning(
            "buffer_size=%d samples do not fit in buffer_bytes=%d, of which a window has half: "
            "windows hold %d on each rank; raise buffer_bytes, or lower buffer_size",
            size,
            options.buffer_bytes,
            options.policy.window_size(limit),
        )

    def step(self, step: StepInfo) -> None:
        """Warns, once and on the first rank, of updates that hold samples of like length."""
        if self._composition is None or step.rank:
            return
        self._composition.add(step)
        groups = step.world_size * step.accumulate
        value = self._composition.value
        if self._composition.updates < (_FEW_UPDATES if groups < GROUPS else _UPDATES):
            return
        self._composition = None
        if value < LEAST_COMPOSITION:
            logger.warning(
                "updates hold samples of like length (composition %.2f, where random batches have "
                "1) and may learn worse: on text, one group of one length had a held-out loss 0.1 "
                "to 0.5 higher after the same samples. %s; or use packed=True, if the model takes "
                "packed rows. See docs/learning.md",
                value,
                "Pass update_tokens=, which makes several smaller groups of an update"
                if groups < GROUPS
                else f"Let an update have more groups than its {groups}: raise update_tokens=",
            )
