"""`MediaShape`: pixels or audio features that are made later, as their shape; and the memory of
the images that they are made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

LATE = "evenstep_images"
"""Field of a sample with what such tensors are made of: see `evenstep.batch.images`."""


def image_bytes(image: Any) -> int:
    """Memory that an image of PIL takes."""
    encoded = getattr(image, "encoded", None)
    if encoded is not None:
        return int(encoded.nbytes)
    return int(image.width) * int(image.height) * len(image.getbands())


@dataclass(frozen=True)
class MediaShape:
    """Stands in a sample for a tensor that is made once the sample's group is known."""

    shape: tuple[int, ...]

    @property
    def ndim(self) -> int:
        return len(self.shape)
