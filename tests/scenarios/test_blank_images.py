"""Steps in which one rank has no image: with a blank they train as in one process, without one the
ranks fail, or wait for each other."""

from __future__ import annotations

import faulthandler
from collections.abc import Callable
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
from blank_job import (
    FAMILY,
    IMAGES,
    RATE,
    ROWS,
    Prepared,
    Stream,
    check,
    collate_again,
    flat,
    loader_of,
)
from evenstep.batch import unbatch
from evenstep.batch.smallest_media import blank_of
from evenstep.errors import MismatchError


def sharded(model: Any) -> Any:
    for layer in (*model.model.visual.blocks, *model.model.language_model.layers):
        fully_shard(layer)
    fully_shard(model.model.visual)
    return fully_shard(model)


Loaders = Callable[[Rank], Any]


def found(rank: Rank) -> Any:
    return loader_of(None)


def found_again(rank: Rank) -> Any:
    return loader_of(None, collate_again())


def train(rank: Rank, way: str, loaders: Loaders) -> tuple[list[list[int]], torch.Tensor]:
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


@pytest.mark.parametrize(("way", "loaders"), [("ddp", found), ("fsdp2", found_again)])
def test_a_blank_lets_a_rank_without_an_image_train(tmp_path, way: str, loaders: Loaders) -> None:
    check(run(train, 2, way, loaders, folder=tmp_path, within=60))


def numbers_in(batch: Any) -> list[int]:
    """Rows of a batch that have labels, known by their tokens."""
    tokens = [
        ids[mask.bool()].tolist() for ids, mask in zip(batch["input_ids"], batch["attention_mask"])
    ]
    own = {str(FAMILY.collate([ROWS[n]])["input_ids"][0].tolist()): n for n in range(len(ROWS))}
    real = [t for t, labels in zip(tokens, batch["labels"]) if (labels != -100).any()]
    return [own[str(t)] for t in real]


def streamed(rank: Rank) -> Any:
    return loader_of(ROWS[min(IMAGES)], collate_again(), Stream(rank.rank))


def measured(rank: Rank) -> Any:
    counts = evenstep.SampleCounts(tokens=tokens_of, supervised=supervised_of)
    return loader_of(ROWS[min(IMAGES)], length_fn=counts)


def tokens_of(row: Any) -> int:
    return int(FAMILY.collate([row])["input_ids"].numel())


def supervised_of(row: Any) -> int:
    return int((FAMILY.collate([row])["labels"] != -100).sum())


def without(rank: Rank) -> Any:
    return loader_of(False, collate_again())


class Counting:
    """Its batches say how many rows they have."""

    def __call__(self, rows: list[Any]) -> Any:
        return {**FAMILY.collate(rows), "rows": torch.tensor(len(rows))}


class Adding(Counting):
    """Every row has an image: those without get the smallest."""

    def __init__(self) -> None:
        self.blank = blank_of(FAMILY.processor())

    def __call__(self, rows: list[Any]) -> Any:
        samples = [unbatch(FAMILY.collate([row])) for row in rows]
        samples = [sample for each in samples for sample in self.blank.added_to([each])]
        return {**evenstep.PadCollator()(samples), "rows": torch.tensor(len(rows))}


def counting(rank: Rank, blank: Any = None) -> str:
    try:
        list(loader_of(blank, collate_again(Counting())).steps())
    except evenstep.EvenstepError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def test_a_row_more_that_would_change_the_others_is_refused_on_all_ranks(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("refused", "remedied")]
    for folder in folders:
        folder.mkdir()
    said = run(counting, 2, folder=folders[0])
    assert all("makes another 'rows' of the same rows where there is one more" in s for s in said)
    assert any(s.startswith("CollateError") for s in said)
    assert run(counting, 2, False, folder=folders[1]) == ["", ""]


def all_with_images(rank: Rank) -> Any:
    loader = loader_of(None, collate_again(Adding()))
    for step in loader.steps():
        step[0].pop("rows")
        yield step


CASES = [("ddp", streamed), ("ddp", measured), ("ddp, unused", without), ("ddp", all_with_images)]


@pytest.mark.parametrize(("way", "loaders"), CASES)
def test_what_warnings_and_errors_advise_trains(tmp_path, way: str, loaders: Loaders) -> None:
    check(run(train, 2, way, loaders, folder=tmp_path, within=60))


def job(rank: Rank, form: str, blank: Any, num_workers: int) -> list[Any]:
    dataset = Prepared() if form == "tokens" else ROWS
    policy = evenstep.Even(max_tokens=256, packed=form == "packed")
    collate: Any = None if form == "tokens" else FAMILY.collate
    if form == "again":
        collate = collate_again()
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
        steps.append((step.to_dict(), "pixel_values" in batch, supervised))
    return steps


@pytest.mark.parametrize(
    ("form", "num_workers"), [("rows", 1), ("again", 1), ("tokens", 0), ("packed", 0)]
)
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
    except MismatchError as error:
        return str(error)
    return ""


def test_ranks_of_which_some_have_no_blank_are_refused(tmp_path: Path) -> None:
    assert all("blank" in said for said in run(differing, 2, folder=tmp_path))
