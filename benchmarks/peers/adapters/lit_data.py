"""litData: chunks written by `optimize`, `StreamingDataset` and `StreamingDataLoader`.

https://github.com/Lightning-AI/litData#speed-up-model-training
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import litdata
import torch.distributed as dist

from benchmarks.peers.adapters.parts import names, parts
from benchmarks.peers.work import Batch, Sample, Work, decode, pad, stack, tokenize

STATE = "state_dict", "load_state_dict"

UPSAMPLED = 4.0
"""A mixture ends with the first source that does, unless it has more samples than are drawn."""


def record(row: tuple[int, bytes]) -> dict[str, Any]:
    return {"id": row[0], "content": row[1]}


def convert(workload: str, raw: Path, to: Path) -> None:
    for name, part in parts(workload, raw):
        litdata.optimize(
            fn=record,
            inputs=list(part),
            output_dir=str(to / name),
            chunk_bytes="64MB",
            num_workers=1,
            start_method="fork",
        )


def text(row: dict[str, Any]) -> Sample:
    return tokenize(row["id"], str(row["content"], "utf-8"))


def picture(row: dict[str, Any]) -> Sample:
    return decode(row["id"], row["content"])


def source(work: Work, name: str, read: Callable[..., Sample], much: float = 1.0) -> Any:
    if work.ranks > 1 and not dist.is_initialized():
        dist.init_process_group("gloo")  # of which it asks its rank
    return litdata.StreamingDataset(
        str(Path(work.folder) / name),
        shuffle=True,
        seed=work.seed,
        transform=read,
        subsample=much,
    )


def loader(work: Work, dataset: Any, collate: Callable[..., Batch]) -> litdata.StreamingDataLoader:
    return litdata.StreamingDataLoader(
        dataset, batch_size=work.batch_size, num_workers=work.workers, collate_fn=collate
    )


def padded(work: Work) -> litdata.StreamingDataLoader:
    return loader(work, source(work, "all", text), pad)


def images(work: Work) -> litdata.StreamingDataLoader:
    return loader(work, source(work, "all", picture), stack)


def mixture(work: Work) -> litdata.StreamingDataLoader:
    sources = [source(work, name, text, UPSAMPLED) for name in names(work.workload)]
    mixed = litdata.CombinedStreamingDataset(
        sources, seed=work.seed, weights=work.weights(), iterate_over_all=False
    )
    return loader(work, mixed, pad)
