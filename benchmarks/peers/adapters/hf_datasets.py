"""Hugging Face datasets, streaming: Parquet, a shuffle buffer, `map`, torch's loader over it.

The loader is torchdata's StatefulDataLoader, which its pages advise for checkpoints.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from datasets import IterableDataset, interleave_datasets, load_dataset
from datasets.distributed import split_dataset_by_node
from torchdata.stateful_dataloader import StatefulDataLoader

from benchmarks.peers.adapters import parquet
from benchmarks.peers.work import SOURCES, Work, decode, pad, stack, tokenize

STATE = "state_dict", "load_state_dict"

BUFFER = 1000  # samples to shuffle among, the default


def convert(workload: str, raw: Path, to: Path) -> None:
    parquet.write(workload, raw, to)


def _stream(work: Work, files: str) -> IterableDataset:
    return load_dataset(
        "parquet", data_files=f"{work.folder}/{files}", split="train", streaming=True
    )


def _tokenized(row: dict[str, Any]) -> dict[str, Any]:
    return tokenize(row["id"], row["text"])


def _decoded(row: dict[str, Any]) -> dict[str, Any]:
    return decode(row["id"], row["jpeg"])


def _loader(work: Work, stream: Any, function: Any, column: str, collate: Any) -> Any:
    # By default it shuffles among 10 files, and 5.2 then leaves workers without any, unless there
    # are 10 for each: https://github.com/huggingface/datasets/issues/8669
    stream = stream.shuffle(seed=work.seed, buffer_size=BUFFER, max_buffer_input_shards=1)
    stream = split_dataset_by_node(stream, rank=work.rank, world_size=work.ranks)
    stream = stream.map(function, remove_columns=[column])
    return StatefulDataLoader(
        stream, batch_size=work.batch_size, num_workers=work.workers, collate_fn=collate
    )


def padded(work: Work) -> Any:
    return _loader(work, _stream(work, "text-*.parquet"), _tokenized, "text", pad)


def images(work: Work) -> Any:
    return _loader(work, _stream(work, "images-*.parquet"), _decoded, "jpeg", stack)


def mixture(work: Work) -> Any:
    mixed = interleave_datasets(
        [_stream(work, f"{source:02}-*.parquet") for source in range(SOURCES)],
        probabilities=work.weights(),
        seed=work.seed,
        stopping_strategy="all_exhausted",
    )
    return _loader(work, mixed, _tokenized, "text", pad)
