"""`LastMeeting`: where the ranks of a trainer have last met to save."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class LastMeeting:
    """Of all ranks; some may have come after the others."""

    step: int = -1
    """-1 if they have never met."""
    clients: Mapping[int, int] = field(default_factory=dict)
    """By rank, the number of its client."""

    def with_clients(self, step: int, clients: Mapping[int, int]) -> LastMeeting:
        """The last meeting once these clients have saved at a step."""
        if step < self.step:
            return self
        before = self.clients if step == self.step else {}
        return LastMeeting(step, {**before, **clients})
