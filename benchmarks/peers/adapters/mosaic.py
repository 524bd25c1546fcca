"""MosaicML Streaming: MDS shards, `StreamingDataset` with a `__getitem__`, `StreamingDataLoader`.

https://docs.mosaicml.com/projects/streaming/en/stable/getting_started/main_concepts.html
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

# It imports torchvision, whose wheel declares its operators only beside a torch with CUDA.
for name in ("nms", "qnms"):
    torch.library.define(
        f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
    )

import streaming  # noqa: E402

from benchmarks.peers.adapters.parts import names, parts  # noqa: E402
from benchmarks.peers.work import Batch, Work, decode, pad, stack, tokenize  # noqa: E402

STATE = "state_dict", "load_state_dict"


def convert(workload: str, raw: Path, to: Path) -> None:
    for name, part in parts(workload, raw):
        columns = {"id": "int", "content": "bytes"}
        with streaming.MDSWriter(out=str(to / name), columns=columns) as writer:
            for number, content in part:
                writer.write({"id": number, "content": content})


class Texts(streaming.StreamingDataset):
    def __getitem__(self, at: Any) -> Any:
        row = super().__getitem__(at)
        return tokenize(row["id"], row["content"].decode())


class Pictures(streaming.StreamingDataset):
    def __getitem__(self, at: Any) -> Any:
        row = super().__getitem__(at)
        return decode(row["id"], row["content"])


def loader(
    work: Work, kind: type[streaming.StreamingDataset], collate: Callable[..., Batch], **data: Any
) -> streaming.StreamingDataLoader:
    dataset = kind(batch_size=work.batch_size, shuffle=True, shuffle_seed=work.seed, **data)
    return streaming.StreamingDataLoader(
        dataset, batch_size=work.batch_size, num_workers=work.workers, collate_fn=collate
    )


def padded(work: Work) -> streaming.StreamingDataLoader:
    return loader(work, Texts, pad, local=f"{work.folder}/all")


def images(work: Work) -> streaming.StreamingDataLoader:
    return loader(work, Pictures, stack, local=f"{work.folder}/all")


def mixture(work: Work) -> streaming.StreamingDataLoader:
    streams = [
        streaming.Stream(local=f"{work.folder}/{name}", proportion=weight)
        for name, weight in zip(names(work.workload), work.weights())
    ]
    return loader(work, Texts, pad, streams=streams, epoch_size=work.samples)
