"""`CutDocuments`: splits or truncates documents that are too long, at the user's choice.

To the model, a piece is a separate document: it attends to nothing outside it. Every field of a
sample that is as long as its tokens is cut with them, and ``position_ids`` begin at 0 in each.
Other fields stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import Dataset

from evenstep.batch.measure import length_of
from evenstep.data.resumable import dataset_fingerprint
from evenstep.errors import ConfigurationError, SampleError
from evenstep.plan.packing import OVER_LONG, Pieces, cut_long
from evenstep.plan.value_checks import check_at_least, check_lengths, check_one_of


class CutDocuments(Dataset[Any]):
    """A map-style dataset whose samples have at most `max_tokens` tokens."""

    def __init__(
        self,
        dataset: Any,
        max_tokens: int,
        over_long: str,
        *,
        lengths: npt.ArrayLike | None = None,
        length_fn: Callable[[Any], int] = length_of,
    ) -> None:
        """
        Args:
            dataset: map-style; one document per sample.
            max_tokens: tokens of the longest sample.
            over_long: "split" cuts a longer document into as few samples as possible, of equal
                length. "truncate" keeps its first `max_tokens`. "error" refuses it.
            lengths: [documents] integers, tokens of each. "split" needs them, since they decide how
                many samples there are.
            length_fn: from a sample to its tokens, as for `evenstep.DataLoader`.

        Raises:
            ConfigurationError: an argument is wrong, or "split" has no lengths.
            SampleError: "error", lengths are given, and a document is longer.
        """
        check_at_least(1, max_tokens=max_tokens)
        check_one_of(OVER_LONG, over_long=over_long)
        if lengths is None and over_long == "split":
            raise ConfigurationError(
                'over_long="split" needs lengths=, which decide how many samples there are: count '
                "the tokens of each document, or truncate"
            )
        self.dataset = dataset
        self.max_tokens = max_tokens
        self.over_long = over_long
        self._length_fn = length_fn
        self._pieces: Pieces | None = None
        if lengths is not None:
            known = check_lengths(lengths)
            if len(known) != len(dataset):
                raise ConfigurationError(
                    f"{len(known):,} lengths for a dataset of {len(dataset):,} samples; count them "
                    "again"
                )
            self._pieces = cut_long(known, max_tokens, over_long)
            self._known = known

    def __len__(self) -> int:
        return len(self.dataset) if self._pieces is None else len(self._pieces)

    @property
    def fingerprint(self) -> str:
        """The dataset's fingerprint and the cut; for checkpoints."""
        inner = dataset_fingerprint(self.dataset, iterable=False)
        return f"{inner} {self.over_long} at {self.max_tokens}"

    def __getitem__(self, index: int) -> Any:
        if self._pieces is None:
            sample = self.dataset[index]
            length = self._length_fn(sample)
            if length > self.max_tokens and self.over_long == "error":
                raise SampleError(
                    f"it has {length:,} tokens, over max_tokens={self.max_tokens:,}; choose "
                    'over_long="split" or "truncate"'
                )
            return _cut(sample, 0, min(length, self.max_tokens), length)
        document = int(self._pieces.documents[index])
        sample = self.dataset[document]
        length, known = self._length_fn(sample), int(self._known[document])
        if length != known:
            raise SampleError(
                f"document {document} has {length:,} tokens, but {known:,} in lengths=, by which "
                "documents are cut; count them again"
            )
        begin, end = int(self._pieces.begins[index]), int(self._pieces.ends[index])
        return _cut(sample, begin, end, length)


def _cut(sample: Any, begin: int, end: int, length: int) -> Any:
    if begin == 0 and end == length:
        return sample
    part = begin, end, length
    if isinstance(sample, Mapping):
        return {name: _sliced(name, value, *part) for name, value in sample.items()}
    cut = _sliced("", sample, *part)
    if cut is sample:
        raise SampleError(
            f"it is a {type(sample).__name__} of {length:,} tokens, and only mappings and "
            "sequences of tokens can be cut; return one from the dataset"
        )
    return cut


def _sliced(name: str, value: Any, begin: int, end: int, length: int) -> Any:
    array = isinstance(value, (torch.Tensor, np.ndarray)) and value.ndim
    if not (array or isinstance(value, (list, tuple))) or len(value) != length:
        return value
    if name == "position_ids":  # of a piece, which is a document of its own
        value = torch.as_tensor(value)
        return value[begin:end] - value[begin]
    return value[begin:end]
