"""`PlanCache`: large answers of the planner, put into Ray's object store once for all constructors.

The plan of thousands of samples is hundreds of kilobytes, and every constructor asks for it. Each
is answered with a reference; Ray copies the plan to each machine once, and the planner sends no
more than the reference.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from evenstep.service.ray.road import import_ray

SHARED_BYTES = 64 * 1024
"""Answers up to this size are sent to each constructor: one message instead of two."""


class PlanCache:
    """References to the answers of one actor, by step."""

    def __init__(self, kept: int = 16) -> None:
        """
        Args:
            kept: steps whose answers are kept.
        """
        self._kept = kept
        self._references: OrderedDict[int, tuple[Any, Any]] = OrderedDict()

    def reference(self, step: int, plan: Any, answer: bytes) -> Any:
        """The reference to a step's answer, the same for all that ask.

        Args:
            answer: with this plan; stored if that of the step is another one or none.
        """
        if step not in self._references or self._references[step][0] is not plan:
            self._references[step] = plan, import_ray().put(answer)
            while len(self._references) > self._kept:
                self._references.popitem(last=False)
        return self._references[step][1]
