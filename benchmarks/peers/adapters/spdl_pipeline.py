"""SPDL: pipelines of threads; for text, whose work holds Python's lock, in a subprocess.

Text as in its `examples/llm_finetune`, pictures as in `examples/image_dataloading.py`: decoded and
scaled by FFmpeg, which has to be on the machine.

https://facebookresearch.github.io/spdl/main/
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import spdl.io
from spdl.pipeline import PipelineBuilder, run_pipeline_in_subprocess
from spdl.source import DistributedRandomSampler
from spdl.source.utils import embed_shuffle

from benchmarks.peers.work import (
    PIXELS,
    SOURCES,
    Batch,
    Sample,
    Work,
    jpegs,
    pad,
    texts,
    tokenize,
)

BUFFER = 3
"""Batches ahead, in the examples."""


class Tokenize:
    """A sample by its index."""

    def __init__(self, rows: Iterable[tuple[int, str]]) -> None:
        self.rows = list(rows)

    def __call__(self, index: int) -> Sample:
        return tokenize(*self.rows[index])


def batches(work: Work, sampler: DistributedRandomSampler, tokenize: Tokenize) -> Iterable[Batch]:
    backend = (
        PipelineBuilder()
        .add_source(embed_shuffle(sampler), continuous=True)
        .pipe(tokenize, concurrency=work.workers)
        .aggregate(work.batch_size)
        .pipe(pad)
        .add_sink(BUFFER)
    )
    return run_pipeline_in_subprocess(
        backend.get_config(), num_threads=work.workers, mp_context="spawn"
    )


def padded(work: Work) -> Iterable[Batch]:
    tokenize = Tokenize(texts(work.folder))
    sampler = DistributedRandomSampler(
        len(tokenize.rows), rank=work.rank, world_size=work.ranks, seed=work.seed
    )
    return batches(work, sampler, tokenize)


def mixture(work: Work) -> Iterable[Batch]:
    rows, weights = [], []
    for source, weight in zip(range(SOURCES), work.weights()):
        own = list(texts(work.folder, source))
        rows += own
        weights += [weight / len(own)] * len(own)
    sampler = DistributedRandomSampler(
        len(rows),
        rank=work.rank,
        world_size=work.ranks,
        num_draws=work.samples,
        weights=weights,
        seed=work.seed,
    )
    return batches(work, sampler, Tokenize(rows))


class Pictures:
    """An epoch of batches of pictures."""

    def __init__(self, work: Work) -> None:
        self._paths = jpegs(work.folder)
        sampler = DistributedRandomSampler(
            len(self._paths), rank=work.rank, world_size=work.ranks, seed=work.seed
        )
        self._pipeline = (
            PipelineBuilder()
            .add_source(embed_shuffle(sampler))
            .aggregate(work.batch_size)
            .pipe(self._decode, concurrency=work.workers)
            .add_sink(BUFFER)
            .build(num_threads=work.workers)
        )

    def _decode(self, indices: list[int]) -> Batch:
        paths = [str(self._paths[index]) for index in indices]
        buffer = spdl.io.load_image_batch(paths, width=PIXELS, height=PIXELS, pix_fmt="rgb24")
        pixels = spdl.io.to_torch(buffer).permute(0, 3, 1, 2)
        return {"id": [int(Path(path).stem) for path in paths], "pixels": pixels}

    def __iter__(self) -> Iterator[Batch]:
        with self._pipeline.auto_stop():
            yield from self._pipeline


def images(work: Work) -> Iterable[Batch]:
    return Pictures(work)
