"""Pictures: sizes to cells, documents to samples, and embeddings on their way."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import evenstep.service as es
from evenstep.batch.count_media import patches_of
from evenstep_demos.service.options import RANKS, ServiceDemoOptions
from evenstep_demos.service.vision.pictures import KINDS, picture_sources
from evenstep_demos.service.vision.routes import routes_of
from evenstep_demos.service.vision.strategies import (
    CELLS,
    PATCH,
    PICTURE,
    VISION_RUNS,
    cells_of,
    pictured,
    supervised,
    vision_job,
)

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
    for run in VISION_RUNS:
        with es.start(vision_job(stored, options, run), backend="local") as service:
            found[run] = [next(service.client(rank)) for rank in range(RANKS)]
    return found


@pytest.mark.parametrize("run", VISION_RUNS)
def test_every_embedding_comes_to_all_ranks_that_need_it(
    steps: dict[str, list[Any]], run: str
) -> None:
    routes = [routes_of(step.subplans["encoder"], step.samples) for _, step in steps[run]]
    embeddings = [  # of each rank: sample and cell
        [
            (table.identity(row), cell)
            for table in step.subplans["encoder"].samples
            for row in range(len(table))
            for cell in range(int(table.lengths["image"][row]) // 4)
        ]
        for _, step in steps[run]
    ]
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
    assert all(len(each) > 0 for each in embeddings)


@pytest.mark.parametrize("module", ["strategies", "vision.strategies"])
def test_what_planners_and_loaders_run_needs_no_torch(module: str) -> None:
    program = f"import sys, evenstep_demos.service.{module}; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "False", done.stderr
