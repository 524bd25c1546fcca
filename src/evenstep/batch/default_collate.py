"""`DefaultCollator`: batches as torch's DataLoader makes them, or padded where samples have tokens.

Which of the two is decided by the kind of sample, so that all batches of a dataset are alike.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch.utils.data import default_collate

from evenstep.batch.columns import TOKENS
from evenstep.batch.pad import PadCollator


@dataclass(frozen=True)
class DefaultCollator:
    """Collates a group of mappings or objects that have ``input_ids``, and of dataclasses, as
    `PadCollator` does; of anything else as ``torch.utils.data.default_collate`` does."""

    def __call__(self, samples: Sequence[Any]) -> Any:
        """Collates one group.

        Raises:
            CollateError: as `PadCollator`.
            RuntimeError, TypeError: as torch's, of tensors that differ in shape for instance.
        """
        first = samples[0]
        named = TOKENS in first if isinstance(first, Mapping) else hasattr(first, TOKENS)
        if named or dataclasses.is_dataclass(first):
            return PadCollator()(samples)
        return default_collate(list(samples))
