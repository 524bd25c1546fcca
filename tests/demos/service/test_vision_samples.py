"""Pictures: sizes to cells, documents to samples, and embeddings on their way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import evenstep.service as es
from evenstep.batch.count_media import patches_of
from evenstep_demos.service.options import CONTEXT, DATA, RANKS, ServiceDemoOptions
from evenstep_demos.service.vision.encode import (
    CELLS,
    PATCH,
    PICTURE,
    cells_of,
    pictured,
    supervised,
)
from evenstep_demos.service.vision.pictures import KINDS, picture_sources, samples_of
from evenstep_demos.service.vision.routes import Routes, routes_of_group, routes_of_subplan
from evenstep_demos.service.vision.strategies import ENCODER, encoder_cost, vision_job

SIDES = st.integers(1, 20_000)


@given(SIDES, SIDES)
def test_a_picture_has_as_many_cells_as_cover_it_or_as_may_be(width: int, height: int) -> None:
    rows, columns = cells_of(width, height)
    assert 1 <= rows * columns <= CELLS
    whole = (-(-height // 28), -(-width // 28))
    if whole[0] * whole[1] <= CELLS:
        assert (rows, columns) == whole
    else:
        assert rows <= whole[0]
        assert columns <= whole[1]
        assert rows * columns >= CELLS // 4 or 1 in (rows, columns)


@settings(max_examples=20)
@given(st.integers(1, 900), st.integers(1, 900), st.text(min_size=2, max_size=40))
def test_a_sample_has_a_token_for_each_cell_and_four_patches(w: int, h: int, text: str) -> None:
    text = text.encode("utf-8", "replace").decode()
    sample = pictured({"size": (w, h), "text": text, "seed": 5})
    cells = int((sample["input_ids"] == PICTURE).sum())
    assert patches_of(sample) == 4 * cells == len(sample["pixel_values"])
    assert sample["pixel_values"].shape == (4 * cells, PATCH)
    assert bytes(sample["input_ids"][cells:].astype(np.uint8)).decode() == text
    assert supervised(sample) == len(text.encode())
    same = pictured({"size": (w, h), "text": text, "seed": 5})
    assert (same["pixel_values"] == sample["pixel_values"]).all()
    other = pictured({"size": (w, h), "text": text, "seed": 6})
    assert (other["pixel_values"] != sample["pixel_values"]).any()


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("no picture", [("no picture", None)]),
        ("before <image> a <image> b", [("before", None), ("a", [1, 2]), ("b", [3, 4])]),
        ("<image> one", [("", None), ("one", [1, 2]), ("", [3, 4])]),
        ("a <image> b <image> c <image> d", [("a", None), ("b", [1, 2]), ("c <image> d", [3, 4])]),
    ],
)
def test_a_picture_goes_with_the_text_behind_it(text: str, found: list[Any]) -> None:
    sizes = [(1, 2), (3, 4)] if "<image>" in text else []
    assert samples_of(text, sizes) == found


def test_pictures_of_parquet_files_are_samples_of_their_sources(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    told = [
        ("docs", "intro <image> first " + "x" * 200, [100], [50]),
        ("docs", "<image>", [10], [10]),
        ("laws", "only text", [], []),
    ]
    rows = [dict(zip(("source", "text", "image_w", "image_h"), each)) for each in told]
    data = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), data)
    options = ServiceDemoOptions(vision=True, data=[data], max_length=64, out=tmp_path / "out")
    stored = picture_sources(options)
    assert stored.samples == {"docs": 2, "laws": 1}
    assert stored.facts == {"found": 3, "pictures": 1, "unusable": 2, "shortened": 1}


def test_made_up_pictures_are_of_every_kind_and_the_same_each_time(tmp_path: Path) -> None:
    made = [
        picture_sources(ServiceDemoOptions(vision=True, out=tmp_path / name)) for name in ("a", "b")
    ]
    assert made[0].samples == {name: kind.samples for name, kind in KINDS.items()}
    for name in KINDS:
        assert made[0].path(name).read_bytes() == made[1].path(name).read_bytes()


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """By run, [ranks] what each is given."""
    options = ServiceDemoOptions(
        vision=True, samples_per_step=16, max_length=64, out=tmp_path_factory.mktemp("out")
    )
    stored = picture_sources(options)
    found = {}
    for run in ("jointly", "apart"):
        with es.start(vision_job(stored, options, run), backend="local") as service:
            found[run] = [next(service.client(rank)) for rank in range(RANKS)]
    return found


@pytest.mark.parametrize("run", ["jointly", "apart"])
def test_every_embedding_comes_to_all_ranks_that_need_it(
    steps: dict[str, list[Any]], run: str
) -> None:
    clients_of = [[0, 1], [2, 3]]
    assert (DATA, CONTEXT) == (2, 2)
    routes: list[Routes] = []
    embeddings: list[list[tuple[Any, int]]] = []  # of each rank: sample and cell
    for rank, (_, step) in enumerate(steps[run]):
        if run == "apart":
            part = step.subplans[ENCODER]
            routes.append(routes_of_subplan(part, step.samples, clients_of, RANKS, range(RANKS)))
            mine = list(part.samples)
        else:
            costs = [encoder_cost(table.lengths["image"]) for table in step.samples]
            made, rows = routes_of_group(step.samples, step.bucket, rank, clients_of, RANKS, costs)
            routes.append(made)
            mine = [table[each] for table, each in zip(step.samples, rows)]
        embeddings.append(
            [
                (table.identity(row), cell)
                for table in mine
                for row in range(len(table))
                for cell in range(int(table.lengths["image"][row]) // 4)
            ]
        )
    assert [sum(each.sent_to) for each in routes] == [len(each.sent) for each in routes]
    for rank, (_, step) in enumerate(steps[run]):
        got = []
        for sender, theirs in enumerate(routes):
            begin = sum(theirs.sent_to[:rank])
            rows = theirs.sent[begin : begin + theirs.sent_to[rank]]
            assert len(rows) == routes[rank].got_from[sender]
            got += [embeddings[sender][row] for row in rows.tolist()]
        wanted = 0
        for table, begins in zip(step.samples, routes[rank].begins):
            for row in range(len(table)):
                cells = int(table.lengths["image"][row]) // 4
                wanted += cells
                assert (begins[row] >= 0) == (cells > 0)
                expected = [(table.identity(row), cell) for cell in range(cells)]
                assert got[max(begins[row], 0) :][:cells] == expected
        assert wanted == len(got)
    if run == "apart":
        assert all(len(each) > 0 for each in embeddings)
