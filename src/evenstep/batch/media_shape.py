"""`MediaShape`: pixels or audio features that are made later, as their shape."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class MediaShape:
    """Stands in a sample for a tensor that is made once the sample's group is known."""

    shape: tuple[int, ...]

    @property
    def ndim(self) -> int:
        return len(self.shape)
