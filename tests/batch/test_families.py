"""Rows of every model family, prepared one by one, make the batch that the family makes of them.

Each row goes through the family's own collate function alone, `unbatch` makes a sample of it, and
`PadCollator` a batch of the samples. The family's collate function, given all rows at once, is the
independent answer.
"""

from __future__ import annotations

import pickle

import pytest
import torch

pytest.importorskip("transformers", minversion="5.24")
pytest.importorskip("PIL")

from evenstep import PadCollator
from evenstep.batch import unbatch
from evenstep.batch.labels import IGNORE_INDEX
from families import FAMILIES, Family

GROUPS = {
    "text only": [0, 0, 0],
    "one image each": [1, 1, 1],
    "several images each": [2, 2, 2],
    "mixed": [2, 0, 1, 0, 2],
    "text first": [0, 1],
    "text last": [2, 0],
    "alone": [2],
}
"""Media per row. Which row of each family, and so sizes and lengths, follows from its place."""
CASES = [
    pytest.param(family, media, id=f"{family.name}, {group}")
    for family in FAMILIES.values()
    for group, media in GROUPS.items()
    if not family.always_media or media == [1, 1, 1]
]
each_family = pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)


def rows_of(family: Family, media: list[int]) -> list[dict]:
    return [family.row(3 * number + 1, images=count) for number, count in enumerate(media)]


def mixed_rows(family: Family) -> list[dict]:
    return rows_of(family, [1, 1, 1] if family.always_media else GROUPS["mixed"])


def alone(family: Family, rows: list[dict]) -> list[dict]:
    """Each row's batch of one."""
    return [family.collate([row]) for row in rows]


def joined(family: Family, rows: list[dict]) -> dict:
    collate = PadCollator(side=family.padding_side, pad_token_id=family.pad_token_id or 0)
    return collate([unbatch(batch) for batch in alone(family, rows)])


def gradient(family: Family, batch: dict) -> torch.Tensor:
    """Of the mean loss, all parameters in one vector."""
    model = family.model(0)
    model(**batch).loss.backward()
    parameters = model.parameters()
    return torch.cat(
        [(torch.zeros_like(p) if p.grad is None else p.grad).ravel() for p in parameters]
    )


def assert_close(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    assert (ours - theirs).abs().max() <= 1e-5 * theirs.abs().max()


@pytest.mark.parametrize(("family", "media"), CASES)
def test_samples_prepared_alone_make_the_familys_own_batch(family: Family, media: list[int]):
    rows = rows_of(family, media)
    ours, theirs = joined(family, rows), family.collate(rows)
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        assert ours[name].dtype == value.dtype, name
        assert torch.equal(ours[name], value), name


@each_family
def test_samples_prepared_alone_train_like_the_familys_own_batch(family: Family):
    rows = mixed_rows(family)
    assert_close(gradient(family, joined(family, rows)), gradient(family, family.collate(rows)))


@each_family
def test_a_joined_batch_trains_like_its_rows_one_after_the_other(family: Family):
    rows = mixed_rows(family)
    batches = alone(family, rows)
    supervised = [int((batch["labels"] != IGNORE_INDEX).sum()) for batch in batches]
    parts = [gradient(family, batch) * count for batch, count in zip(batches, supervised)]
    assert_close(gradient(family, joined(family, rows)), sum(parts) / sum(supervised))


@each_family
def test_a_mixed_group_trains_the_tower_of_the_family(family: Family):
    model = family.model(0)
    loss = model(**family.collate(mixed_rows(family))).loss
    loss.backward()
    reached = [
        name
        for name, parameter in model.named_parameters()
        if name.startswith(family.tower) and parameter.grad is not None and parameter.grad.any()
    ]
    assert loss.isfinite()
    assert len(reached) > 10


@each_family
def test_rows_weights_and_collate_functions_are_the_same_in_every_process(family: Family):
    rows = mixed_rows(family)
    again = pickle.loads(pickle.dumps(family.collate))(mixed_rows(family))
    for name, value in family.collate(rows).items():
        assert torch.equal(again[name], value), name
    pairs = zip(family.model(3).parameters(), family.model(3).parameters())
    assert all(torch.equal(one, other) for one, other in pairs)


@each_family
def test_only_the_answer_is_supervised(family: Family):
    processor = family.processor()
    for row in mixed_rows(family):
        labels = family.collate([row])["labels"]
        text = processor.tokenizer.decode(labels[labels != IGNORE_INDEX], skip_special_tokens=True)
        answer = row["text"] if "text" in row else row["messages"][-1]["content"][0]["text"]
        assert text.strip() == answer
