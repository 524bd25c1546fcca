"""An iterable dataset that keeps its own place, and may have lost it when a pass begins.

After a pass that was left, or that was gone on with from a state, such a dataset may stand
anywhere, and the next pass over it would be short.
"""

from __future__ import annotations

import copy
from typing import Any

__all__ = ["OwnPlace"]

_UNKNOWN = object()


class OwnPlace:
    """Follows a dataset that has ``state_dict`` and ``load_state_dict`` from pass to pass."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self._fresh: Any = _UNKNOWN  # its state before the first pass
        self._astray = False

    def begin(self, *, here: bool) -> bool:
        """A pass begins.

        Args:
            here: over the dataset of this process, which is brought back to its beginning if it is
                astray. Elsewhere it is a copy, which whoever has it must make anew.

        Returns:
            Whether it was astray.
        """
        if here and self._fresh is _UNKNOWN:
            self._fresh = copy.deepcopy(self._dataset.state_dict())
        elif here and self._astray:
            self._dataset.load_state_dict(copy.deepcopy(self._fresh))
        astray, self._astray = self._astray, True
        return astray

    def end(self) -> None:
        """A whole pass has ended, and with it the dataset has gone back to its beginning."""
        self._astray = False
