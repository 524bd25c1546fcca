"""Where samples come from: sources of a mixture, datasets, and what wraps them.

Each name is imported on first use: a process that reads files needs no torch, and with many such
processes that is most of their memory.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from evenstep.data.cut_documents import CutDocuments
    from evenstep.data.lengths_cache import read_lengths, write_lengths
    from evenstep.data.lengths_count import count_lengths
    from evenstep.data.pool_sort_dataset import PoolSortDataset
    from evenstep.data.reader import SourceReader, StoredSample
    from evenstep.data.shard_order import SampleLocation, ShardOrder
    from evenstep.data.source import Source

__all__ = [
    "CutDocuments",
    "PoolSortDataset",
    "SampleLocation",
    "ShardOrder",
    "Source",
    "SourceReader",
    "StoredSample",
    "count_lengths",
    "read_lengths",
    "write_lengths",
]

_HOME_OF = {
    "CutDocuments": "cut_documents",
    "StoredSample": "reader",
    "PoolSortDataset": "pool_sort_dataset",
    "ShardOrder": "shard_order",
    "Source": "source",
    "SourceReader": "reader",
    "SampleLocation": "shard_order",
    "count_lengths": "lengths_count",
    "read_lengths": "lengths_cache",
    "write_lengths": "lengths_cache",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'evenstep.data' has no attribute {name!r}")
    value = getattr(import_module(f"evenstep.data.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value
