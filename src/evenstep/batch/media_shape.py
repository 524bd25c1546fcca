"""`MediaShape`: pixels or audio features that are made later, as their shape."""

from __future__ import annotations

from dataclasses import dataclass

LATE = "evenstep_images"
"""Field of a sample with what such tensors are made of: see `evenstep.batch.images`."""


@dataclass(frozen=True)
class MediaShape:
    """Stands in a sample for a tensor that is made once the sample's group is known."""

    shape: tuple[int, ...]

    @property
    def ndim(self) -> int:
        return len(self.shape)
