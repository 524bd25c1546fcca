"""Checkpoints of torch that are damaged."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
import torch.distributed.checkpoint as dcp
from hypothesis import strategies as st
from mutations import damaged, fuzz

import evenstep
from documents import Documents
from evenstep.errors import ConfigurationError, MismatchError

FOLDER = tempfile.TemporaryDirectory()
HERE = Path(FOLDER.name)


def make_loader() -> evenstep.DataLoader:
    return evenstep.DataLoader(
        Documents(30), policy=evenstep.Even(300), memory=evenstep.Memory(buffer_size=12)
    )


def checkpoint() -> dict[str, bytes]:
    folder = HERE / "whole"
    dcp.save({"loader": make_loader().state_dict()}, checkpoint_id=folder, no_dist=True)
    make_loader().load_state_dict(evenstep.read_states(folder))
    return {path.name: path.read_bytes() for path in folder.iterdir()}


CHECKPOINT = checkpoint()


@fuzz(12, st.sampled_from(list(CHECKPOINT)), st.data())
def test_a_damaged_checkpoint(name: str, data: st.DataObject) -> None:
    folder = HERE / "damaged"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    content = CHECKPOINT[name]
    cut = st.integers(0, len(content) - 1).map(lambda end: content[:end])
    for file, whole in CHECKPOINT.items():
        (folder / file).write_bytes(data.draw(cut | damaged(whole)) if file == name else whole)
    try:
        make_loader().load_state_dict(evenstep.read_states(folder))
    except ConfigurationError as error:
        assert str(folder) in str(error)  # noqa: PT017
    except MismatchError:
        pass


def test_what_is_no_checkpoint_is_named(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(ConfigurationError, match=rf"checkpoint {path} cannot be read"):
            evenstep.read_states(path)
