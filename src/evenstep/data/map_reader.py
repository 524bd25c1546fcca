"""Datasets as sources: of torch, of Hugging Face, or anything with their methods.

A map-style dataset is divided into blocks, which are its shards. An iterable one is a single shard
and comes in its own order, which must be the same whenever it is begun; where it has ``set_epoch``,
that is called with the number of each pass. It keeps its place in itself, so it belongs to one
reader: give a function that makes it where the same source is opened more than once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from torch.utils.data import IterableDataset

from evenstep.data.fingerprint import dataset_fingerprint
from evenstep.data.iterable_reader import StreamReader
from evenstep.data.reader import ShardedReader, SourceReader
from evenstep.data.shard_order import ShardOrder, ShardPart
from evenstep.errors import ConfigurationError, SampleError

if TYPE_CHECKING:
    from evenstep.data.source import Source

__all__ = ["MapReader", "open_dataset"]


def open_dataset(source: Source, seed: int) -> SourceReader:
    """A reader of what `Source.data` is, or makes."""
    dataset = source.data
    made = callable(dataset) and not hasattr(dataset, "__iter__")
    if made and not hasattr(dataset, "__getitem__"):
        try:
            dataset = source.data()
        except Exception as error:
            raise ConfigurationError(
                f"source {source.name!r}: the function that makes its dataset raised "
                f"{type(error).__name__}: {error}"
            ) from error
        if callable(getattr(dataset, "__next__", None)):
            dataset = source.data  # a generator is used up by one pass, so each begins a new one
    if (
        hasattr(dataset, "__getitem__")
        and hasattr(dataset, "__len__")
        and not isinstance(dataset, IterableDataset)
    ):
        return MapReader(source, seed, dataset)
    return StreamReader(source, seed, dataset)


class MapReader(ShardedReader):
    """See the module docstring."""

    def __init__(self, source: Source, seed: int, dataset: Any) -> None:
        super().__init__(source, seed)
        self._dataset = dataset
        count = len(dataset)
        sizes = np.full(-(-count // source.block), source.block, np.int64)
        if count % source.block:
            sizes[-1] = count % source.block
        self._order = ShardOrder(
            sizes,
            seed=seed,
            name=source.name,
            shuffle_shards=source.shuffle is not False,
            shuffle_samples=source.shuffle is not False,
        )
        self._check_size()

    def _shard(self, part: ShardPart) -> Iterator[Any]:
        for index in part.indices.tolist():
            try:
                sample = self._dataset[part.shard * self.source.block + index]
                yield fields_of(sample, self.source)
            except Exception as error:
                raise self._failed(error, part.shard, index) from error

    def _content(self) -> Mapping[str, Any]:
        about = dataset_fingerprint(self._dataset, iterable=False)
        return {
            "format": "map-style dataset",
            "samples": self.size,
            "block": self.source.block,
            "dataset": about,
        }


def fields_of(sample: Any, source: Source) -> Any:
    """The columns that the source names."""
    if source.columns is None:
        return sample
    if not isinstance(sample, Mapping):
        raise SampleError(
            f"columns={list(source.columns)} of a {type(sample).__name__}; only mappings have them"
        )
    return {name: sample[name] for name in source.columns}
