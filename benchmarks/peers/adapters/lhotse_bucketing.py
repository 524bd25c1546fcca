"""lhotse: `DynamicBucketingSampler` over texts, which tokenizes in the process of the trainer.

https://lhotse.readthedocs.io/en/latest/datasets.html#sampling-non-audio-data
"""

from __future__ import annotations

from typing import Any

from lhotse import CutSet
from lhotse.cut.text import TextExample
from lhotse.dataset import DynamicBucketingSampler
from lhotse.dataset.sampling.base import TokenConstraint
from lhotse.lazy import LazyJsonlIterator
from torch.utils.data import DataLoader, Dataset

from benchmarks.peers.work import SOURCES, Batch, Work, pad, tokenize

BUFFER = 1000
"""Samples in its buckets. The default, 20,000, is more than an epoch here, all of which it would
tokenize before the first batch."""


def example(row: dict[str, Any]) -> TextExample:
    sample = tokenize(row["id"], row["text"])
    return TextExample(row["text"], sample["input_ids"], custom={"number": row["id"]})


def texts(work: Work, name: str) -> CutSet:
    rows = CutSet(LazyJsonlIterator(f"{work.folder}/{name}.jsonl"))
    return rows.map(example, apply_fn=None)


class Batches(Dataset[Batch]):
    def __getitem__(self, examples: Any) -> Batch:
        return pad([{"id": e.custom["number"], "input_ids": e.tokens} for e in examples])


def loader(work: Work, examples: CutSet) -> DataLoader[Batch]:
    sampler = DynamicBucketingSampler(
        examples,
        constraint=TokenConstraint(max_tokens=work.max_tokens),
        num_cuts_for_bins_estimate=BUFFER,
        buffer_size=BUFFER,
        shuffle=True,
        seed=work.seed,
        world_size=work.ranks,
        rank=work.rank,
    )
    # The dataset collates whole batches, hence batch_size=None.
    return DataLoader(Batches(), sampler=sampler, batch_size=None, num_workers=work.workers)


def padded(work: Work) -> DataLoader[Batch]:
    return loader(work, texts(work, "text"))


def mixture(work: Work) -> DataLoader[Batch]:
    sources = [texts(work, f"{source:02}").repeat() for source in range(SOURCES)]
    return loader(work, CutSet.mux(*sources, weights=work.weights(), seed=work.seed))
