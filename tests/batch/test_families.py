"""Rows of every model family, prepared one by one, make the batch that the family makes of them.

Each row goes through the family's own collate function alone, `unbatch` makes a sample of it, and
`PadCollator` a batch of the samples. The family's collate function, given all rows at once, is the
independent answer.
"""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("transformers", minversion="5.24")
pytest.importorskip("PIL")

from evenstep import PadCollator
from evenstep.batch import unbatch
from families import FAMILIES, Family

GROUPS = {
    "one image each": [1, 1, 1],
    "mixed": [2, 0, 1, 0, 2],
}
"""Media per row. Which row of each family, and so sizes and lengths, follows from its place."""
CASES = [
    pytest.param(family, media, id=f"{family.name}, {group}")
    for family in FAMILIES.values()
    for group, media in GROUPS.items()
    if family.always_media == (group == "one image each")
]


def rows_of(family: Family, media: list[int]) -> list[dict]:
    return [family.row(3 * number + 1, images=count) for number, count in enumerate(media)]


def alone(family: Family, rows: list[dict]) -> list[dict]:
    """Each row's batch of one."""
    return [family.collate([row]) for row in rows]


def joined(family: Family, rows: list[dict]) -> dict:
    collate = PadCollator(side=family.padding_side, pad_token_id=family.pad_token_id or 0)
    return collate([unbatch(batch) for batch in alone(family, rows)])


@pytest.mark.parametrize(("family", "media"), CASES)
def test_samples_prepared_alone_make_the_familys_own_batch(family: Family, media: list[int]):
    rows = rows_of(family, media)
    ours, theirs = joined(family, rows), family.collate(rows)
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        assert ours[name].dtype == value.dtype, name
        assert torch.equal(ours[name], value), name
