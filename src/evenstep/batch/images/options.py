"""What an image processor is told: by its own settings, or in a call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from evenstep.errors import EvenstepError

IGNORED = ("return_tensors", "do_convert_rgb", "do_resize", "do_rescale", "do_normalize")
"""Arguments of a call that `Call.check` looks at, or that do not change shapes."""


class NotPlanned(EvenstepError):
    """A call whose result does not follow from the sizes of images by a known rule. The sample is
    made at once."""


class LargeImages(NotPlanned):
    """Images that take more memory than their pixels will."""


@dataclass(frozen=True)
class Call:
    """One call of an image processor, without the images."""

    processor: Any
    """The image processor."""
    arguments: Mapping[str, Any]
    known: list[str] = field(default_factory=lambda: list(IGNORED))
    """Arguments that were looked at."""

    def option(self, name: str) -> Any:
        """The argument of that name, else the processor's setting."""
        self.known.append(name)
        given = self.arguments.get(name)
        return getattr(self.processor, name, None) if given is None else given

    def side(self, name: str, *keys: str) -> int:
        """A number of the setting `name`, which is a mapping such as ``size``, by the first of
        `keys` that it has."""
        sizes = self.option(name)
        for key in keys:
            value = sizes.get(key) if isinstance(sizes, Mapping) else getattr(sizes, key, None)
            if value:
                return int(value)
        raise NotPlanned(f"{name}={sizes} has none of {keys}")

    def check(self) -> None:
        """
        Raises:
            NotPlanned: the call changes what the rule does not know of.
        """
        if self.arguments.get("return_tensors") != "pt":
            raise NotPlanned("return_tensors is not 'pt'")
        for name in ("do_convert_rgb", "do_resize", "do_rescale", "do_normalize"):
            if not self.option(name):
                raise NotPlanned(f"{name} is off")
        changed = [
            name
            for name, value in self.arguments.items()
            if name not in self.known and value is not None and value != self._own(name)
        ]
        if changed:
            raise NotPlanned(f"the rule does not know of {', '.join(changed)}")

    def _own(self, name: str) -> Any:
        return getattr(self.processor, name, None)


Size = tuple[int, int]
"""Height and width of an image."""
Planned = dict[str, Any]
"""What the processor returns: pixels as tensors without memory (``device="meta"``), and all else
as it is."""


def placeholder(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def flat(sizes: Sequence[Sequence[Size]]) -> list[Size]:
    return [size for row in sizes for size in row]
