"""Where samples come from: sources of a mixture, map-style and iterable datasets, cached lengths.

A source of a mixture, from its description to its samples, in reading order:

    source             `Source`: where the data lies and how a sample is prepared; read it first
    pickling           what a description holds can be sent to other processes
    shard_order        `ShardOrder`: position -> (pass, shard, index)
    reader             `SourceReader`: samples from any position on
    source_files       files of a source, on disk or in an object store
    file_listing       files that a path or glob names
    storage_file       `StorageFile`: a file that is read whole, or not at all
    storage_retry      `retried`: reads again what may come back
    content_digest     tells whether files still hold what they held
    code_digest        tells whether a transform still does what it did
    parquet, jsonl, webdataset, map_reader, iterable_reader    a reader for each kind
    row_slice, sized_cache    the rows of a row group that come next, as many as there is room for
    local_copy         a row group of another machine, while it is decoded more than once
    reader_kinds       `open_reader`: from a `Source` to its reader; `open_readers`: of many;
                       add a kind of source here

`Source.weight` is the mixing weight of a source where no schedule says otherwise; schedules and the
draws by them are in `evenstep.strategy.mixture`.

Datasets of a `DataLoader`:

    resumable          reads any iterable, and resumes it where a reading stopped
    fingerprint        identifies a dataset from one run to the next
    cut_documents      `CutDocuments`: splits or truncates documents that are too long
    pool_sort_dataset  `PoolSortDataset`, with pool_pass (one pass), pool_order (its order) and
                       energon (its methods for Megatron-Energon)
    lengths_count, lengths_cache    count the lengths of a dataset once, keep them in a file

Each name is imported on first use: a process that reads files needs no torch, which is most of the
memory of such a process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from evenstep.lazy_names import lazy_names

if TYPE_CHECKING:
    from evenstep.data.cut_documents import CutDocuments as CutDocuments
    from evenstep.data.lengths_cache import read_lengths as read_lengths
    from evenstep.data.lengths_cache import write_lengths as write_lengths
    from evenstep.data.lengths_count import count_lengths as count_lengths
    from evenstep.data.pool_sort_dataset import PoolSortDataset as PoolSortDataset
    from evenstep.data.reader import SourceReader as SourceReader
    from evenstep.data.reader import StoredSample as StoredSample
    from evenstep.data.reader_kinds import open_reader as open_reader
    from evenstep.data.reader_kinds import open_readers as open_readers
    from evenstep.data.shard_order import SampleLocation as SampleLocation
    from evenstep.data.shard_order import ShardOrder as ShardOrder
    from evenstep.data.source import Source as Source

_HOMES = {
    ".cut_documents": ("CutDocuments",),
    ".lengths_cache": ("read_lengths", "write_lengths"),
    ".lengths_count": ("count_lengths",),
    ".pool_sort_dataset": ("PoolSortDataset",),
    ".reader": ("SourceReader", "StoredSample"),
    ".reader_kinds": ("open_reader", "open_readers"),
    ".shard_order": ("SampleLocation", "ShardOrder"),
    ".source": ("Source",),
}
__all__ = sorted(name for names in _HOMES.values() for name in names)
__getattr__, __dir__ = lazy_names(__name__, _HOMES)
