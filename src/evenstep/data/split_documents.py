"""`SplitDocuments`: a map-style dataset's documents that are too long, in pieces: see
`evenstep.plan.too_long`.

A piece is an entry of the dataset like any other, so it is shuffled, comes once, and is resumed
like any other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy.typing as npt
from torch.utils.data import Dataset

from evenstep.batch.cut import cut
from evenstep.batch.measure import length_of
from evenstep.data.resumable import dataset_fingerprint
from evenstep.errors import ConfigurationError, SampleError
from evenstep.plan.too_long import pieces_of
from evenstep.plan.value_checks import check_lengths


class SplitDocuments(Dataset[Any]):
    """A map-style dataset whose samples have at most `max_tokens` tokens."""

    def __init__(
        self,
        dataset: Any,
        max_tokens: int,
        *,
        lengths: npt.ArrayLike,
        length_fn: Callable[[Any], int] = length_of,
    ) -> None:
        """
        Args:
            dataset: map-style; one document per sample.
            max_tokens: tokens of the longest sample.
            lengths: [documents] integers, tokens of each: they decide how many samples there are.
            length_fn: from a sample to its tokens, as for `evenstep.DataLoader`.

        Raises:
            ConfigurationError: an argument is wrong.
        """
        self.dataset = dataset
        self.max_tokens = max_tokens
        self._length_fn = length_fn
        self._known = check_lengths(lengths)
        if len(self._known) != len(dataset):
            raise ConfigurationError(
                f"{len(self._known):,} lengths for a dataset of {len(dataset):,} samples; count "
                "them again"
            )
        self._pieces = pieces_of(self._known, max_tokens, "split")

    def __len__(self) -> int:
        return len(self._pieces)

    @property
    def fingerprint(self) -> str:
        """The dataset's fingerprint and the cut; for checkpoints."""
        inner = dataset_fingerprint(self.dataset, iterable=False)
        return f"{inner} split at {self.max_tokens}"

    def __getitem__(self, index: int) -> Any:
        document = int(self._pieces.samples[index])
        sample = self.dataset[document]
        length, known = self._length_fn(sample), int(self._known[document])
        if length != known:
            raise SampleError(
                f"document {document} has {length:,} tokens, but {known:,} in lengths=, by which "
                "documents are split; count them again"
            )
        begin, end = int(self._pieces.begins[index]), int(self._pieces.ends[index])
        return cut(sample, begin, end, length)
