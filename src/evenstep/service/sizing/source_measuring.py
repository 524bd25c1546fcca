"""`measured`: what is measured of one source, in a process that does nothing else.

The same happens to its samples as in a loader, one after the other, timed by parts. Memory is that
of the process: what it grew by when the source was opened and read from, and by the transform. Of a
reader that decodes many rows at once, the time of the first is spread over them.
"""

from __future__ import annotations

import ctypes
import gc
import os
import pickle
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from evenstep.data.pickling import pickled
from evenstep.data.reader import SourceReader, StoredSample
from evenstep.data.reader_kinds import open_reader
from evenstep.data.source import Source
from evenstep.errors import ConfigurationError
from evenstep.service.job.sample_measure import SampleMeasure, total
from evenstep.service.source_loader.preparer import sample_bytes
from evenstep.service.transport.frames import from_frames, to_frames
from evenstep.strategy.loaders import SourceProfile

_LONGEST_SHARD = 1 << 24
_FEW = 8  # samples that are worth more time than was given
_MORE_TIME = 4  # times as much


@dataclass(frozen=True)
class Measuring:
    """What to measure by."""

    measure: SampleMeasure
    counted: tuple[int, ...]
    """Columns of lengths that add up to a sample's tokens."""
    seed: int
    samples: int
    """Of each source, at most."""
    seconds: float
    """For each source, about. For a few samples it may take some times as long, and one is measured
    in any case."""

    def is_enough(self, samples: int, seconds: float) -> bool:
        """Whether reading them, or preparing them, needs no more samples."""
        limit = self.seconds / 2 * (_MORE_TIME if samples < _FEW else 1)
        return samples > 0 and (samples >= self.samples or seconds >= limit)


def measured(reader: SourceReader, asked: Measuring, before: int) -> SourceProfile:
    """The costs of a source that was just opened.

    Args:
        before: `held_bytes` before it was opened.

    Raises:
        ConfigurationError: it has no samples.
        SampleError: a sample cannot be read or prepared.
    """
    source = reader.source
    stored, reads = _read(reader, asked)
    if not stored:
        raise ConfigurationError(f"source {source.name!r} has no samples; leave it out")
    opened = held_bytes() - sum(sample_bytes(each.sample) for each in stored)
    prepares, sends, hands, sizes, tokens = [], [], [], [], []
    start = time.perf_counter()
    for each in stored:
        begin = time.perf_counter()
        sample = source.prepare(each.sample, each.shard, each.index)
        lengths = asked.measure(source, sample, each.shard, each.index)
        prepared = time.perf_counter()
        from_frames(to_frames(sample))
        sent = time.perf_counter()
        pickled(f"a sample of source {source.name!r}", each)
        pickle.loads(pickled(f"a prepared sample of source {source.name!r}", sample))
        hands.append(time.perf_counter() - sent)
        sends.append(sent - prepared)
        prepares.append(prepared - begin)
        sizes.append(sample_bytes(sample))
        tokens.append(sum(total(lengths[column]) for column in asked.counted))
        if asked.is_enough(len(sizes), time.perf_counter() - start):
            break
    prepares = prepares[1:] or prepares  # the first may load what all need
    del stored, sample
    return SourceProfile(
        source=source.name,
        samples=len(sizes),
        read_seconds=_seconds_of_read(reader, reads),
        prepare_seconds=float(np.mean(prepares)),
        prepare_high=float(np.percentile(prepares, 90)),
        send_seconds=float(np.median(sends)),
        handover_seconds=float(np.median(hands)),
        file_bytes=max(opened - before, 0),
        transform_bytes=max(held_bytes() - opened, 0),
        sample_bytes=int(np.mean(sizes)),
        tokens=float(np.mean(tokens)),
        random_access=reader.random_access,
        transform=source.transform_code or "",
    )


def held_bytes() -> int:
    """Memory of this process, without what was freed or is mapped from files."""
    gc.collect()
    if (pyarrow := sys.modules.get("pyarrow")) is not None:
        pyarrow.default_memory_pool().release_unused()
    with suppress(OSError, AttributeError):  # where there is no such function
        ctypes.CDLL(None).malloc_trim(0)
    with suppress(OSError), open("/proc/self/statm") as file:
        _, resident, mapped, *_ = map(int, file.read().split())
        return (resident - mapped) * os.sysconf("SC_PAGE_SIZE")
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def warm_up(source: Source) -> None:
    """Reads a small file of the source's kind, so that memory of libraries is not the source's."""
    if source.kind != "parquet":
        return
    import pyarrow
    import pyarrow.parquet

    with TemporaryDirectory() as folder:
        path = Path(folder) / "small.parquet"
        table = pyarrow.table({"x": [bytes(1 << 10)] * 1024})
        pyarrow.parquet.write_table(table, path, row_group_size=256)
        with open_reader(Source("small", str(path))) as reader:
            list(islice(reader.read(), len(table)))
            reader.fingerprint  # noqa: B018  as a loader is asked for it


def _read(reader: SourceReader, asked: Measuring) -> tuple[list[StoredSample], list[float]]:
    """The first stored samples, and the seconds that each took."""
    stored: list[StoredSample] = []
    seconds: list[float] = []
    start = time.perf_counter()
    stream: Iterator[StoredSample] = reader.read(passes=1, transform=False)
    while not asked.is_enough(len(stored), time.perf_counter() - start):
        begin = time.perf_counter()
        sample = next(stream, None)
        if sample is None:
            break
        seconds.append(time.perf_counter() - begin)
        stored.append(sample)
    return stored, seconds


def _seconds_of_read(reader: SourceReader, reads: list[float]) -> float:
    steady = float(np.mean(reads[1:] or reads))
    rows = _rows_of_first_shard(reader)
    return steady + (max(reads[0] - steady, 0.0) / rows if rows else 0.0)


def _rows_of_first_shard(reader: SourceReader) -> int | None:
    if reader.size is None:
        return None
    shard, most = reader.order(0).shard, min(reader.size, _LONGEST_SHARD)
    last, after = 0, 1  # of the shard, and not known to be
    while after < most and reader.order(after).shard == shard:
        last, after = after, min(2 * after, most)
    while after - last > 1:
        middle = (last + after) // 2
        if reader.order(middle).shard == shard:
            last = middle
        else:
            after = middle
    return after
