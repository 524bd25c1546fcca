"""How a constructor collates the samples of a micro-batch: by name, or by the user's function.

Torch is imported when samples are collated, not when a job is only read.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from evenstep.batch.count_media import VISION_GRIDS
from evenstep.errors import ConfigurationError

Collate = Callable[[Sequence[Any]], Any]

COLLATORS = ("pack", "pad")


def collator_of(given: str | Collate, labels: str) -> Collate:
    """The collate function that a job, checked, names or gives.

    Args:
        labels: how the model reads labels.
    """
    from evenstep.batch import PackCollator, PadCollator

    made = {"pad": PadCollator, "pack": PackCollator}[given]() if isinstance(given, str) else given
    if isinstance(made, PackCollator) and made.mask_first_label is None:
        return replace(made, mask_first_label=labels == "causal")
    return made


def check_collate(given: Any) -> None:
    """
    Raises:
        ConfigurationError: neither the name of a collate function nor a function.
    """
    if given not in COLLATORS if isinstance(given, str) else not callable(given):
        raise ConfigurationError(
            f"collate={given!r} must be one of {', '.join(COLLATORS)}, or a function from a list "
            "of samples to a batch"
        )


def keeps_first_label(given: str | Collate) -> bool:
    """Whether rows are packed by a `PackCollator` that is told to keep first labels."""
    return packs(given) and getattr(given, "mask_first_label", None) is False


def packs(given: str | Collate) -> bool:
    """Whether rows are packed by `PackCollator`."""
    return _is(given, "pack", "PackCollator")


def pads(given: str | Collate) -> bool:
    """Whether rows are padded by `PadCollator`."""
    return _is(given, "pad", "PadCollator")


def _is(given: str | Collate, name: str, kind: str) -> bool:
    if isinstance(given, str):
        return given == name
    # If its module, which needs torch, was not imported, nothing can be an instance of the class.
    module = sys.modules.get(f"evenstep.batch.{name}")
    return module is not None and isinstance(given, getattr(module, kind))


def vision_fields(samples: Sequence[Any]) -> dict[str, Any] | list[Any]:
    """The default collate function of subplans: grids and pixels of all samples, concatenated in
    order, for a vision encoder. If no sample has such fields, the samples themselves."""
    import torch

    joined = {}
    for name in (name for pair in VISION_GRIDS.items() for name in pair):
        found = [s[name] for s in samples if isinstance(s, Mapping) and s.get(name) is not None]
        rows = [torch.as_tensor(value) for value in found]
        if rows:
            joined[name] = torch.cat([row.reshape(-1, row.shape[-1]) for row in rows])
    return joined or list(samples)
