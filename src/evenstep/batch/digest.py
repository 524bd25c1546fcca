"""A number for what a sample holds, by which ranks that must prepare the same sample compare it."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from evenstep.batch.labels import as_array, labels_of
from evenstep.batch.measure import tokens_of

__all__ = ["digests_of"]


def digests_of(samples: Sequence[Any]) -> npt.NDArray[np.int64]:
    """[samples] of the tokens and labels of each; 0 for one that has neither."""
    return np.array([_digest(sample) for sample in samples], np.int64)


def _digest(sample: Any) -> int:
    digest = 0
    for value in (tokens_of(sample), labels_of(sample)):
        if value is not None:
            digest = zlib.crc32(np.ascontiguousarray(as_array(value)).tobytes(), digest)
    return digest
