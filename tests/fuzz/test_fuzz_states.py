"""States of loaders: a damaged one is refused when it is loaded, or the pass that follows ends,
with an error of evenstep's or without, and no sample comes twice. So are checkpoints."""

from __future__ import annotations

import itertools
import json
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from hypothesis import strategies as st
from mutations import changed, damaged, fuzz
from torch.utils.data import IterableDataset

import evenstep
from documents import Documents
from evenstep.errors import ConfigurationError, EvenstepError, MismatchError

DOCUMENTS = Documents(60)
WINDOW = evenstep.Memory(buffer_size=12)


class Numbers(IterableDataset):
    def __iter__(self) -> Any:
        return ({"input_ids": torch.full((1 + i % 7,), i), "identity": i} for i in range(60))


LOADERS: dict[str, Callable[[], evenstep.DataLoader]] = {
    "shares": lambda: evenstep.DataLoader(
        DOCUMENTS, policy=evenstep.TokenBudget(300, max_wait=3), shuffle=True, memory=WINDOW
    ),
    "dealt": lambda: evenstep.DataLoader(
        DOCUMENTS, policy=evenstep.Even(300), shuffle=True, memory=WINDOW, accumulate=2
    ),
    "sampler": lambda: evenstep.DataLoader(
        DOCUMENTS, sampler=list(range(60)), batch_size=4, memory=WINDOW
    ),
    "iterable": lambda: evenstep.DataLoader(
        Numbers(),
        batch_size=4,
        faults=evenstep.Faults(replay=True),
        memory=evenstep.Memory(chunk_size=3, buffer_size=12),
    ),
}


def state_after(steps: int, make: Callable[[], evenstep.DataLoader]) -> dict[str, Any]:
    loader = make()
    for _ in itertools.islice(loader.steps(), steps):
        pass
    state = loader.state_dict()
    loader.close()
    return json.loads(json.dumps(state))


def rest_of(loader: evenstep.DataLoader) -> Counter[int]:
    return Counter(i for batch, _ in loader.steps() for i in batch["identity"].tolist())


STATES = {name: state_after(3, make) for name, make in LOADERS.items()}


@fuzz(
    60,
    st.sampled_from(list(STATES)).flatmap(
        lambda name: st.tuples(st.just(name), changed(STATES[name]))
    ),
)
def test_a_damaged_state_is_refused_or_the_pass_ends(drawn: tuple[str, Any]) -> None:
    name, state = drawn
    loader = LOADERS[name]()
    before = loader.state_dict()
    try:
        loader.load_state_dict(state)
    except MismatchError:
        assert loader.state_dict() == before, "a refused state has changed the loader"
        return
    try:
        came = rest_of(loader)
    except EvenstepError:
        return
    finally:
        loader.close()
    assert max(came.values(), default=1) == 1


@pytest.mark.parametrize(
    ("part", "change", "said"),
    [
        # The pass would wait forever for the samples that it takes for trained,
        ("epoch", {"received": 0}, "damaged: ValueError: trained is"),
        ("dp_rank_0", {"quota": None}, "damaged: ValueError: quota is None"),
        # or for samples that its window has no room for.
        ("dp_rank_0", {"quota": 61}, "window gathers 61 samples, and this loader's hold 12"),
    ],
)
def test_a_state_for_which_the_pass_would_wait_for_ever_is_refused(
    part: str, change: dict[str, int | None], said: str
) -> None:
    state = json.loads(json.dumps(STATES["shares"]))
    assert state["dp_rank_0"]["trained"]
    state[part] |= change
    with pytest.raises(MismatchError, match=said):
        LOADERS["shares"]().load_state_dict(state)


# Checkpoints

FOLDER = tempfile.TemporaryDirectory()
HERE = Path(FOLDER.name)


def checkpoint() -> dict[str, bytes]:
    folder = HERE / "whole"
    dcp.save({"loader": LOADERS["dealt"]().state_dict()}, checkpoint_id=folder, no_dist=True)
    LOADERS["dealt"]().load_state_dict(evenstep.read_states(folder))
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
        LOADERS["dealt"]().load_state_dict(evenstep.read_states(folder))
    except ConfigurationError as error:
        assert str(folder) in str(error)  # noqa: PT017
    except MismatchError:
        pass
