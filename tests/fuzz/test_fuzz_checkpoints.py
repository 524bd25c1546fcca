"""States in other forms: checkpoints of torch, states of mixtures and of the service."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch.distributed.checkpoint as dcp
from hypothesis import strategies as st
from mutations import changed, damaged, fuzz

import evenstep
import evenstep.service as es
from documents import Documents
from evenstep.errors import ConfigurationError, EvenstepError, MismatchError
from evenstep.mixture import LengthCurriculum, Mixer
from evenstep.mixture.sample_table import SampleTable
from evenstep.service.planner.planner import Planner
from evenstep.strategy import BufferedMetadata, DGraph, LoadingPlan

FOLDER = tempfile.TemporaryDirectory()
HERE = Path(FOLDER.name)


# Checkpoints of torch


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


# Mixtures and the service

NAMES = ("web", "code")


def buffered() -> BufferedMetadata:
    count = 400
    source = np.repeat([0, 1], count)
    position = np.tile(np.arange(count), 2)
    lengths = {"text": 1 + position * 7 % 50}
    return BufferedMetadata(
        SampleTable(NAMES, source, position, np.zeros(2 * count), position, lengths)
    )


def mixture() -> Mixer:
    curriculum = LengthCurriculum({0: 20, 1000: 50})
    weights = {"web": 2.0, "code": 1.0}
    return Mixer(NAMES, weights, samples_per_step=8, curriculum=curriculum, seed=3)


def plan(graph: DGraph, mesh: Any, step: int) -> LoadingPlan:
    return graph.mix().distribute("DP").balance("greedy").plan()


JOB = es.Job(
    sources=[es.Source(name, [{"input_ids": [1]}]) for name in NAMES],
    mesh={"DP": 2},
    strategy=plan,
    max_tokens=128,
    draws=es.DrawOptions(samples_per_step=16),
)


def mixture_state() -> dict[str, Any]:
    made, provider = mixture(), buffered()
    for step in range(3):
        made.draw(step, provider)
    return json.loads(json.dumps(made.state_dict()))


def planner_state() -> dict[str, Any]:
    planner = Planner(JOB, buffered())
    planner.plan(2)
    planner.report(2, 0, {"loss": 2.5})
    return json.loads(json.dumps(planner.state_dict()))


MIXTURE, PLANNER = mixture_state(), planner_state()


def check_damaged(made: Any, state: Any, go_on: Callable[[], object]) -> None:
    """A state is refused, or it is one to go on from until something else is refused."""
    before = made.state_dict()
    try:
        made.load_state_dict(state)
    except MismatchError:
        assert made.state_dict() == before
        return
    try:
        go_on()
    except EvenstepError:
        return
    json.dumps(made.state_dict(), allow_nan=False)


@fuzz(25, changed(MIXTURE))
def test_a_damaged_state_of_a_mixture(state: Any) -> None:
    made = mixture()
    check_damaged(made, state, lambda: made.draw(made.step, buffered()))


@fuzz(25, changed(PLANNER))
def test_a_damaged_state_of_the_service(state: Any) -> None:
    planner = Planner(JOB, buffered())
    check_damaged(planner, state, lambda: planner.plan(planner.step))


def test_whole_states_are_read() -> None:
    made, planner = mixture(), Planner(JOB, buffered())
    made.load_state_dict(MIXTURE)
    planner.load_state_dict(PLANNER)
    assert made.state_dict() == MIXTURE
    assert planner.state_dict() == PLANNER
    assert any(source["waiting"] for source in MIXTURE["sources"].values())
