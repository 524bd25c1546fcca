"""Files with states that end at any byte, as a killed job or a full disk may leave them."""

from __future__ import annotations

import itertools
import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from faults import loader_over

import evenstep
from documents import Documents


def save_by_torch(state: Any, folder: Path) -> None:
    torch.save(state, folder / "state.pt")


def save_as_json(state: Any, folder: Path) -> None:
    (folder / "state.json").write_text(json.dumps(state))


def save_by_dcp(state: Any, folder: Path) -> None:
    dcp.save({"loader": state}, checkpoint_id=folder, no_dist=True)


FORMS: dict[str, tuple[Callable[..., None], Callable[[Path], Any], type[Exception]]] = {
    "torch.save": (save_by_torch, lambda folder: torch.load(folder / "state.pt"), Exception),
    "JSON": (
        save_as_json,
        lambda folder: json.loads((folder / "state.json").read_text()),
        json.JSONDecodeError,
    ),
    "torch.distributed.checkpoint": (
        save_by_dcp,
        evenstep.read_states,
        evenstep.ConfigurationError,
    ),
}
"""How a state is saved and read, and the error of a reader whose file is cut off."""


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.soak)])
@pytest.mark.timeout(900)
def test_a_state_cut_off_at_any_byte_is_not_read(tmp_path: Path, form: str, every: bool) -> None:
    save, read, error = FORMS[form]
    loader = loader_over(Documents(100), shuffle=True)
    assert len(list(itertools.islice(loader.steps(), 3))) == 3
    state = loader.state_dict()
    loader.close()
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    whole.mkdir()
    save(state, whole)
    expected = read(whole)
    for file in whole.iterdir():
        size = file.stat().st_size
        ends = {*range(0, size, 1 if every else math.ceil(size / 20)), *range(size - 8, size)}
        for end in sorted(ends):
            shutil.copytree(whole, cut)
            with (cut / file.name).open("r+b") as part:
                part.truncate(end)
            try:
                found = read(cut)
            except error:
                found = expected
            assert found == expected, f"{file.name} cut off at byte {end} of {size}"
            shutil.rmtree(cut)
