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

from ranks import Rank, run_all
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


def all_with_images(rank: Rank) -> Any:
    loader = loader_of(None, collate_again(Adding()))
    for step in loader.steps():
        step[0].pop("rows")
        yield step


WAYS = [
    ("ddp", found),
    ("fsdp2", found_again),
    # What warnings and errors advise.
    ("ddp", streamed),
    ("ddp, unused", without),
]
MORE_WAYS = [("ddp", measured), ("ddp", all_with_images)]


@pytest.mark.parametrize("ways", [WAYS, pytest.param(MORE_WAYS, marks=pytest.mark.slow)])
def test_a_blank_lets_a_rank_without_an_image_train(tmp_path: Path, ways: Any) -> None:
    jobs = [partial(train, way=way, loaders=loaders) for way, loaders in ways]
    for ranks in run_all(*jobs, world_size=2, folder=tmp_path, within=150):
        check(ranks)


FORMS = {"rows": 1, "again": 1, "tokens": 0, "packed": 0}


def steps_of(form: str, with_blank: bool) -> list[Any]:
    num_workers = FORMS[form]
    collate: Any = None if form == "tokens" else FAMILY.collate
    if form == "again":
        collate = collate_again()
    if form == "packed":
        config = FAMILY.model(0).config
        collate = evenstep.PreparingCollator(collate_fn=collate, config=config)
    blank = FAMILY.processor() if form == "tokens" else None
    loader = evenstep.DataLoader(
        Prepared() if form == "tokens" else ROWS,
        policy=evenstep.Even(max_tokens=256, packed=form == "packed"),
        collate_fn=collate,
        blank=blank if with_blank else False,
        memory=evenstep.Memory(buffer_size=8),
        num_workers=num_workers,
        multiprocessing_context="fork" if num_workers else None,
    )
    steps = []
    for batch, step in loader.steps():
        labels = batch["labels"]
        supervised = labels[labels != -100].tolist()
        steps.append((step.to_dict(), supervised, "pixel_values" in batch))
    return steps


def with_and_without(rank: Rank) -> dict[str, list[list[Any]]]:
    return {form: [steps_of(form, True), steps_of(form, False)] for form in FORMS}


def differing(rank: Rank) -> str:
    with pytest.raises(MismatchError) as caught:
        list(loader_of(None if rank.rank else False).steps())
    return str(caught.value)


def remedied(rank: Rank) -> str:
    return counting(rank, False)


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[list[Any]]:
    """[functions, ranks]"""
    return run_all(
        with_and_without,
        differing,
        counting,
        remedied,
        world_size=2,
        folder=tmp_path_factory.mktemp("ranks"),
        within=150,
    )


@pytest.mark.parametrize("form", FORMS)
def test_every_group_has_an_image_and_nothing_counts_the_blanks(form, ranks) -> None:
    lacking = []
    for ours, theirs in (each[form] for each in ranks[0]):
        assert [step[:2] for step in ours] == [step[:2] for step in theirs]
        assert all(has for *_, has in ours)
        lacking += [has for *_, has in theirs]
    assert not all(lacking)


def test_ranks_of_which_some_have_no_blank_are_refused(ranks) -> None:
    assert all("blank" in said for said in ranks[1])


def test_a_row_more_that_would_change_the_others_is_refused_on_all_ranks(ranks) -> None:
    assert all(
        "makes another 'rows' of the same rows where there is one more" in s for s in ranks[2]
    )
    assert any(s.startswith("CollateError") for s in ranks[2])
    assert ranks[3] == ["", ""]
