"""Large answers that many ask for, which lie in Ray's object store once.

A plan of thousands of samples is hundreds of kilobytes, and every constructor asks for it. Who asks
is given a reference; Ray brings what it stands for to each machine once, and the planner sends no
more than that.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from evenstep.service.ray.import_ray import import_ray

__all__ = ["SHARED_BYTES", "PlanCache"]

SHARED_BYTES = 64 * 1024
"""Smaller ones are sent to each: that is one message instead of two."""


class PlanCache:
    """Of one actor."""

    def __init__(self, kept: int = 16) -> None:
        """
        Args:
            kept: steps whose answers are kept for others who ask.
        """
        self._kept = kept
        self._references: OrderedDict[int, Any] = OrderedDict()

    def reference(self, step: int, answer: bytes) -> Any:
        """To the answer about a step, the same for all who ask.

        Args:
            answer: taken where nobody has asked before.
        """
        if step not in self._references:
            self._references[step] = import_ray().put(answer)
            while len(self._references) > self._kept:
                self._references.popitem(last=False)
        return self._references[step]
