"""Where samples come from: sources of a mixture, map-style and iterable datasets, cached lengths.

A source of a mixture, from its description to its samples, in reading order:

    source             `Source`: where the data lies and how a sample is prepared; read it first
    pickling           what a description holds can be sent to other processes
    shard_order        `ShardOrder`: position -> (pass, shard, index)
    reader             `SourceReader`: samples from any position on
    source_files       files of a source, on disk or in an object store
    parquet, jsonl, webdataset, map_reader, iterable_reader    a reader for each kind
    reader_kinds       `open_reader`: from a `Source` to its reader

The mixing weight of a source is `Source.weight`; schedules of weights and the draws by them are in
`evenstep.strategy.mixture`.

Datasets of a `DataLoader`:

    resumable          reads any iterable, and resumes it where a reading stopped
    fingerprint        identifies a dataset from one run to the next
    cut_documents      `CutDocuments`: splits or truncates documents that are too long
    pool_sort_dataset  `PoolSortDataset`, with pool_order (its order) and energon (its methods for
                       Megatron-Energon)
    lengths_count, lengths_cache    count the lengths of a dataset once, keep them in a file

Each name is imported on first use: a process that reads files needs no torch, which is most of the
memory of such a process.
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
    from evenstep.data.reader_kinds import open_reader
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
    "open_reader",
    "read_lengths",
    "write_lengths",
]

_HOME_OF = {
    "CutDocuments": "cut_documents",
    "PoolSortDataset": "pool_sort_dataset",
    "SampleLocation": "shard_order",
    "ShardOrder": "shard_order",
    "Source": "source",
    "SourceReader": "reader",
    "StoredSample": "reader",
    "count_lengths": "lengths_count",
    "open_reader": "reader_kinds",
    "read_lengths": "lengths_cache",
    "write_lengths": "lengths_cache",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'evenstep.data' has no attribute {name!r}")
    value = getattr(import_module(f"evenstep.data.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value
