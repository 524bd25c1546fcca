"""Grain: ArrayRecord files with random access, `MapDataset`, and `mp_prefetch`.

https://google-grain.readthedocs.io/en/latest/tutorials/dataset_advanced_tutorial.html
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import grain
import torch
from array_record.python.array_record_module import ArrayRecordWriter

from benchmarks.peers.adapters.parts import names, parts
from benchmarks.peers.work import Batch, Sample, Work, decode, pad, stack, tokenize

STATE = "get_state", "set_state"

NUMBER = 8  # bytes of the id, in front of each record


def convert(workload: str, raw: Path, to: Path) -> None:
    for name, part in parts(workload, raw):
        # A group is what is read and decompressed at once: one record, for random access.
        writer = ArrayRecordWriter(str(to / f"{name}.array_record"), "group_size:1")
        for number, content in part:
            writer.write(number.to_bytes(NUMBER, "little") + content)
        writer.close()


def text(record: bytes) -> Sample:
    return tokenize(int.from_bytes(record[:NUMBER], "little"), record[NUMBER:].decode())


def picture(record: bytes) -> Sample:
    return decode(int.from_bytes(record[:NUMBER], "little"), record[NUMBER:])


def arrays(collate: Callable[[Any], Batch], samples: Any) -> Batch:
    """NumPy arrays travel in shared memory, tensors do not."""
    batch = collate(samples)
    return {key: v.numpy() if isinstance(v, torch.Tensor) else v for key, v in batch.items()}


def tensors(batch: Batch) -> Batch:
    key = "pixels" if "pixels" in batch else "input_ids"
    return batch | {key: torch.from_numpy(batch[key])}


def source(work: Work, name: str, seed: int) -> grain.MapDataset:
    records = grain.sources.ArrayRecordDataSource(f"{work.folder}/{name}.array_record")
    return grain.MapDataset.source(records).seed(seed).shuffle()


def own(work: Work, read: Callable[[bytes], Sample]) -> grain.IterDataset:
    """The samples of this rank."""
    if work.workload == "mixture":
        # Shuffled one by one, so that the weights stay exact; endless, or the shortest one ends it.
        sources = [
            source(work, name, work.seed + place).repeat()
            for place, name in enumerate(names(work.workload))
        ]
        everything = grain.MapDataset.mix(sources, work.weights())
    else:
        everything = source(work, "all", work.seed)
    return everything[work.rank :: work.ranks].map(read).to_iter_dataset()


def started(work: Work, batches: grain.IterDataset) -> grain.DatasetIterator:
    options = grain.MultiprocessingOptions(num_workers=work.workers)
    return iter(batches.mp_prefetch(options).map(tensors))


def padded(work: Work) -> grain.DatasetIterator:
    batches = own(work, text).batch(work.batch_size, batch_fn=partial(arrays, pad))
    return started(work, batches)


def mixture(work: Work) -> grain.DatasetIterator:
    return padded(work)


def images(work: Work) -> grain.DatasetIterator:
    batches = own(work, picture).batch(work.batch_size, batch_fn=partial(arrays, stack))
    return started(work, batches)


def close(loader: grain.DatasetIterator) -> None:
    loader.close()
