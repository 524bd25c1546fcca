"""`SourceProfile`: what a sample of a source costs, as measured."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields
from typing import Any

from evenstep.errors import ConfigurationError


@dataclass(frozen=True, kw_only=True)
class SourceProfile:
    """Seconds and bytes of a source. Seconds are of one processor and, unless they say otherwise,
    means over samples, as a step's time is a sum of them."""

    source: str
    samples: int
    """Samples that were measured."""
    read_seconds: float
    """To read a stored sample. Always the loader's own work."""
    prepare_seconds: float
    """To transform and measure it: the loader's work, or that of its workers."""
    prepare_low: float = 0.0
    """The 10th percentile, `prepare_median` and `prepare_high`, the 90th."""
    prepare_median: float = 0.0
    prepare_high: float = 0.0
    send_seconds: float = 0.0
    """Of the loader, to send a prepared sample."""
    handover_seconds: float = 0.0
    """Of the loader, to give a stored sample to a worker and take back the prepared one."""
    file_bytes: int = 0
    """Memory of the open source: index, decoded rows, connections."""
    transform: str = ""
    """Sources with the same text share what `transform_bytes` counts."""
    transform_bytes: int = 0
    """Memory that the transform keeps once it was called, in each process that calls it."""
    sample_bytes: int = 0
    """Memory of a prepared sample."""
    tokens: float = 1.0
    """Length of a sample."""
    random_access: bool = False
    """Whether loaders that share the source share the reading, too. Otherwise each reads all of it
    and drops what others own."""

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if each.name not in ("source", "transform", "random_access") and not (
                isinstance(value, (int, float)) and math.isfinite(value) and value >= 0
            ):
                raise ConfigurationError(
                    f"{each.name}={value!r} of the profile of source {self.source!r} must be a "
                    "finite number from 0; measure the source again"
                )

    def as_dict(self) -> dict[str, Any]:
        """JSON-able: the arguments."""
        return asdict(self)
