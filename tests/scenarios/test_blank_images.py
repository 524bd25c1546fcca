"""Steps in which one rank has no image: with a blank they train as in one process, without one the
ranks fail, or wait for each other."""

from __future__ import annotations

import faulthandler
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers", minversion="5.24")
pytest.importorskip("PIL")

from ranks import Rank, run, run_all
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from blank_job import (
    FAMILY,
    IMAGES,
    RATE,
    ROWS,
    Stream,
    check,
    collate_again,
    flat,
    loader_of,
)
from evenstep.errors import MismatchError


def sharded(model: Any) -> Any:
    for layer in (*model.model.visual.blocks, *model.model.language_model.layers):
        fully_shard(layer)
    fully_shard(model.model.visual)
    return fully_shard(model)


def train(rank: Rank, way: str, loaders: Callable[[Rank], Any]) -> Any:
    faulthandler.disable()  # Gloo ends a process whose peer sends something else
    model: Any = FAMILY.model(0)
    if way == "fsdp2":
        model = sharded(model)
    else:
        model = DistributedDataParallel(model, find_unused_parameters=way == "ddp, unused")
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    rows = []
    loader = loaders(rank)
    for batch, step in getattr(loader, "steps", loader.__iter__)():
        (model(**batch).loss * step.loss_scale).backward()
        optimizer.step()
        optimizer.zero_grad()
        rows.append(numbers_in(batch) if step.indices is None else list(step.indices))
    whole = [getattr(p, "full_tensor", lambda p=p: p)() for p in model.parameters()]
    return rows, flat(whole)


def numbers_in(batch: Any) -> list[int]:
    """Rows of a batch that have labels, known by their tokens."""
    tokens = [
        ids[mask.bool()].tolist() for ids, mask in zip(batch["input_ids"], batch["attention_mask"])
    ]
    own = {str(FAMILY.collate([ROWS[n]])["input_ids"][0].tolist()): n for n in range(len(ROWS))}
    real = [t for t, labels in zip(tokens, batch["labels"]) if (labels != -100).any()]
    return [own[str(t)] for t in real]


def found(rank: Rank) -> Any:
    return loader_of(None)


def found_again(rank: Rank) -> Any:
    return loader_of(None, collate_again())


def streamed(rank: Rank) -> Any:
    return loader_of(ROWS[min(IMAGES)], collate_again(), Stream(rank.rank))


def without(rank: Rank) -> Any:
    return loader_of(False, collate_again())


WAYS = [
    ("ddp", found),
    ("fsdp2", found_again),
    # What warnings and errors advise.
    ("ddp", streamed),
    ("ddp, unused", without),
]


def test_a_blank_lets_a_rank_without_an_image_train(tmp_path: Path) -> None:
    jobs = [partial(train, way=way, loaders=loaders) for way, loaders in WAYS]
    for ranks in run_all(*jobs, world_size=2, folder=tmp_path, within=150):
        check(ranks)


def differing(rank: Rank) -> str:
    with pytest.raises(MismatchError) as caught:
        list(loader_of(None if rank.rank else False).steps())
    return str(caught.value)


def test_ranks_of_which_some_have_no_blank_are_refused(tmp_path: Path) -> None:
    assert all("blank" in said for said in run(differing, 2, folder=tmp_path, within=90))
