"""Map-style datasets of torch, of Hugging Face, or anything with their methods.

Blocks of `Source.block` samples are the shards.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from evenstep.data.fingerprint import dataset_fingerprint
from evenstep.data.reader import ShardedReader, fields_of
from evenstep.data.shard_order import ShardPart
from evenstep.data.source import Source


class MapReader(ShardedReader):
    """See the module docstring."""

    random_access = True

    def __init__(self, source: Source, seed: int, dataset: Any) -> None:
        super().__init__(source, seed)
        self._dataset = dataset
        count = len(dataset)
        sizes = np.full(-(-count // source.block), source.block, np.int64)
        if count % source.block:
            sizes[-1] = count % source.block
        self._set_order(sizes)

    def _shard(self, part: ShardPart) -> Iterator[Any]:
        for index in part.indices.tolist():
            try:
                sample = self._dataset[part.shard * self.source.block + index]
                yield fields_of(sample, self.source)
            except Exception as error:
                raise self._failed(error, part.shard, index) from error

    def _content(self) -> Mapping[str, Any]:
        return {
            "format": "map-style dataset",
            "samples": self.size,
            "block": self.source.block,
            "dataset": dataset_fingerprint(self._dataset, iterable=False),
        }
