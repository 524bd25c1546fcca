"""Where samples come from: sources of a mixture, map-style and iterable datasets.

A source of a mixture, from its description to its samples, in reading order:

    source           `Source`: where the data lies and how a sample is prepared; read it first;
                     add a format of files to its `FORMATS`
    pickling         checks that a description can be sent to other processes; `code_digest` tells
                     whether a transform still does what it did
    shard_order      `ShardOrder`: position -> (pass, shard, index)
    reader           `SourceReader`: samples from any position on
    source_files     files of a source, on disk or in an object store, and a digest of their content
    storage          reads a file whole or not at all, and retries what may pass
    block_cache      what a host has fetched of remote files, kept for all its processes
    file_index       what opening a file finds out, found once and kept
    parquet, jsonl, webdataset, dataset_readers    a reader for each kind
    row_groups       rows of a Parquet row group that come next, as many as there is room for
    reader_kinds     `open_reader`: from a `Source` to its reader; `open_readers`: of many

`Source.weight` is the mixing weight of a source where no schedule says otherwise; schedules and the
draws by them are in `evenstep.mixture`.

Datasets of a `DataLoader`:

    mixed              `Mixture`: several datasets as one, in shares by a schedule
    mixed_order        `MixtureOrder`: the order of an epoch of map-style datasets
    mixed_pass         `MixedPass`: a worker's pass over iterable datasets
    resumable          what a dataset can do, and how any iterable is resumed
    shares             iterable datasets that are divided among workers of ranks
    split_documents    `SplitDocuments`: documents that are too long, in pieces

Each name is imported on first use: a process that reads files needs no torch, which is most of the
memory of such a process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from evenstep.lazy_names import lazy_names

if TYPE_CHECKING:
    from evenstep.data.block_cache import BlockCache as BlockCache
    from evenstep.data.block_cache import CacheCounts as CacheCounts
    from evenstep.data.mixed import Mixture as Mixture
    from evenstep.data.reader import SourceReader as SourceReader
    from evenstep.data.reader import StoredSample as StoredSample
    from evenstep.data.reader_kinds import open_reader as open_reader
    from evenstep.data.reader_kinds import open_readers as open_readers
    from evenstep.data.shard_order import ShardOrder as ShardOrder
    from evenstep.data.source import Source as Source
    from evenstep.data.split_documents import SplitDocuments as SplitDocuments

__getattr__, __dir__ = lazy_names(__name__)
