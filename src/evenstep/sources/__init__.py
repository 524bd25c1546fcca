"""Where samples come from: sources of a mixture, datasets, and what wraps them."""

from evenstep.sources.cut_documents import CutDocuments
from evenstep.sources.pool_sort_dataset import PoolSortDataset
from evenstep.sources.reader import Item, SourceReader
from evenstep.sources.shard_order import ShardOrder, Where
from evenstep.sources.source import Source

__all__ = [
    "CutDocuments",
    "Item",
    "PoolSortDataset",
    "ShardOrder",
    "Source",
    "SourceReader",
    "Where",
]
