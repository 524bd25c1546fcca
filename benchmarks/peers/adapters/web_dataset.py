"""WebDataset: tar shards, divided among ranks and their workers, and `WebLoader`.

https://github.com/webdataset/webdataset#the-webdataset-pipeline-api
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import webdataset

from benchmarks.peers.adapters.parts import names, parts
from benchmarks.peers.work import Batch, Sample, Work, decode, pad, stack, tokenize

SHARD = 100
"""Samples: every worker of every rank needs shards of its own."""
BUFFER = 1000
"""Of samples, from which it draws."""


def convert(workload: str, raw: Path, to: Path) -> None:
    kind = "jpg" if workload == "images" else "txt"
    for name, part in parts(workload, raw):
        (to / name).mkdir()
        shards = str(to / name / "%06d.tar")
        with webdataset.ShardWriter(shards, maxcount=SHARD, verbose=0) as writer:
            for number, content in part:
                writer.write({"__key__": f"{number:09}", kind: content})


def text(row: dict[str, Any]) -> Sample:
    return tokenize(int(row["__key__"]), row["txt"].decode())


def picture(row: dict[str, Any]) -> Sample:
    return decode(int(row["__key__"]), row["jpg"])


def shards(work: Work, name: str) -> list[str]:
    return sorted(map(str, (Path(work.folder) / name).glob("*.tar")))


def loader(work: Work, samples: Any, collate: Callable[..., Batch]) -> webdataset.WebLoader:
    batches = samples.batched(work.batch_size, collation_fn=collate)
    return webdataset.WebLoader(batches, batch_size=None, num_workers=work.workers)


def source(work: Work) -> Any:
    found = webdataset.WebDataset(
        shards(work, "all"),
        shardshuffle=100,
        nodesplitter=webdataset.split_by_node,
        seed=work.seed,
    )
    return found.shuffle(BUFFER, seed=work.seed)


def padded(work: Work) -> webdataset.WebLoader:
    return loader(work, source(work).map(text), pad)


def images(work: Work) -> webdataset.WebLoader:
    return loader(work, source(work).map(picture), stack)


class Mixed(webdataset.DataPipeline, webdataset.FluidInterface):
    """A pipeline with the methods of `WebDataset`."""


def mixture(work: Work) -> webdataset.WebLoader:
    # Shards are drawn with replacement, apart on every worker: what its pages advise for training.
    sources = [
        webdataset.WebDataset(
            shards(work, name),
            resampled=True,
            shardshuffle=False,
            nodesplitter=None,
            seed=work.seed + place,
        )
        for place, name in enumerate(names(work.workload))
    ]
    mixed = Mixed(webdataset.RandomMix([s.shuffle(BUFFER) for s in sources], work.weights()))
    return loader(work, mixed.map(text), pad)
