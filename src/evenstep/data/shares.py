"""Iterable datasets that can be divided: each worker of each rank reads its share of them.

Any other is trusted to yield the share of its rank and worker.
"""

from __future__ import annotations

import copy
import itertools
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

from torch.utils.data import IterableDataset, get_worker_info

METHOD = "share_of_worker"
"""Of a dataset that divides itself: ``share_of_worker(worker, workers)`` returns an iterable of the
samples of one worker of all of the job, those of all ranks. It is called in that worker in each
pass, and what it returns is not to be divided again by torch's ``get_worker_info``."""


def divides_itself(dataset: Any) -> bool:
    """Whether the dataset says how it is divided: by the method, or by WebDataset's splitter."""
    return callable(getattr(dataset, METHOD, None)) or _splitter_of(dataset) is not None


def is_streamed(dataset: Any) -> bool:
    """Whether the dataset is a streamed one of Hugging Face."""
    theirs = type(dataset).__module__.partition(".")[0] == "datasets"
    return theirs and isinstance(dataset, IterableDataset)


def is_undivided(dataset: Any) -> bool:
    """Whether it is a streamed one that `split_dataset_by_node` was not called for. Shards of it
    may have been chosen for each rank all the same: only the ranks' first rows show that."""
    return is_streamed(dataset) and getattr(dataset, "_distributed", None) is None


def split_by_node(dataset: Any, rank: int, ranks: int) -> Any:
    """A rank's share of a streamed dataset. Its workers divide it by themselves."""
    from datasets.distributed import split_dataset_by_node

    share = split_dataset_by_node(dataset, rank, ranks)
    share.set_epoch(dataset.epoch)
    return share


def share_of(dataset: Any, *, rank: int, ranks: int, dealt: bool) -> Any:
    """What this worker of a rank is to iterate.

    Args:
        dealt: a dataset that `is_undivided` is the same on all ranks.
    """
    if callable(divide := getattr(dataset, METHOD, None)):
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info is not None else (0, 1)
        return divide(worker * ranks + rank, workers * ranks)  # ranks get equally many first
    if dealt:
        return split_by_node(dataset, rank, ranks)
    if (splitter := _splitter_of(dataset)) is not None:
        # Theirs asks the environment, in which workers may not find their rank.
        ours, share = partial(_every, rank=rank, ranks=ranks), copy.copy(dataset)
        share.pipeline = [ours if stage is splitter else stage for stage in dataset.pipeline]
        return share
    return dataset


def _splitter_of(dataset: Any) -> Any:
    """`webdataset.split_by_node`, if the shards of a WebDataset pass through it; else None."""
    library: Any = sys.modules.get("webdataset")
    if library is None or not isinstance(dataset, library.DataPipeline):
        return None
    return library.split_by_node if library.split_by_node in dataset.pipeline else None


def _every(shards: Iterator[Any], *, rank: int, ranks: int) -> Iterator[Any]:
    return itertools.islice(shards, rank, None, ranks)
