"""Steps in which one rank has no image: with a blank they train as in one process, without one the
ranks fail, or wait for each other."""

from __future__ import annotations

import faulthandler
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers", minversion="5.24")
pytest.importorskip("PIL")

from ranks import Rank, run
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import evenstep
from blank_job import FAMILY, RATE, ROWS, Prepared, check, flat, loader_of


def sharded(model: Any) -> Any:
    for layer in (*model.model.visual.blocks, *model.model.language_model.layers):
        fully_shard(layer)
    fully_shard(model.model.visual)
    return fully_shard(model)


def train(rank: Rank, way: str, blank: Any) -> tuple[list[list[int]], torch.Tensor]:
    faulthandler.disable()  # Gloo ends a process whose peer sends something else
    model: Any = FAMILY.model(0)
    model = DistributedDataParallel(model) if way == "ddp" else sharded(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    rows = []
    for batch, step in loader_of(blank).steps():
        (model(**batch).loss * step.loss_scale).backward()
        optimizer.step()
        optimizer.zero_grad()
        rows.append(list(step.indices or ()))
    whole = [getattr(p, "full_tensor", lambda p=p: p)() for p in model.parameters()]
    return rows, flat(whole)


@pytest.mark.parametrize("way", ["ddp", "fsdp2"])
def test_a_blank_lets_a_rank_without_an_image_train(tmp_path: Path, way: str) -> None:
    check(run(train, 2, way, None, folder=tmp_path, within=60))


def job(rank: Rank, form: str, blank: Any, num_workers: int) -> list[Any]:
    dataset = Prepared() if form == "tokens" else ROWS
    policy = evenstep.Even(max_tokens=256, packed=form == "packed")
    collate: Any = None if form == "tokens" else FAMILY.collate
    if form == "packed":
        config = FAMILY.model(0).config
        collate = evenstep.PreparingCollator(collate_fn=collate, config=config)
    loader = evenstep.DataLoader(
        dataset,
        policy=policy,
        collate_fn=collate,
        blank=FAMILY.processor() if blank and form == "tokens" else None if blank else False,
        memory=evenstep.Memory(buffer_size=8),
        num_workers=num_workers,
        multiprocessing_context="fork" if num_workers else None,
    )
    steps = []
    for batch, step in loader.steps():
        labels = batch["labels"]
        supervised = labels[labels != -100].tolist()
        steps.append((step.to_dict(per_rank=True), "pixel_values" in batch, supervised))
    return steps


@pytest.mark.parametrize(("form", "num_workers"), [("rows", 1), ("tokens", 0), ("packed", 0)])
def test_every_group_has_an_image_and_nothing_counts_the_blanks(tmp_path, form, num_workers):
    folders = [tmp_path / name for name in ("with", "without")]
    for folder in folders:
        folder.mkdir()
    ours = run(job, 2, form, True, num_workers, folder=folders[0])
    theirs = run(job, 2, form, False, num_workers, folder=folders[1])
    for mine, other in zip(ours, theirs, strict=True):
        assert [step[0] for step in mine] == [step[0] for step in other]
        assert [step[2] for step in mine] == [step[2] for step in other]
        assert all(has for _, has, _ in mine)
    assert not all(has for other in theirs for _, has, _ in other)


def differing(rank: Rank) -> str:
    try:
        list(loader_of(None if rank.rank else False).steps())
    except evenstep.MismatchError as error:
        return str(error)
    return ""


def test_ranks_of_which_some_have_no_blank_are_refused(tmp_path: Path) -> None:
    assert all("blank" in said for said in run(differing, 2, folder=tmp_path))
