"""What earlier releases stored is read, and what follows is exactly what followed then.

A change that fails here breaks jobs that are stopped, upgraded and resumed: see docs/versions.md.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import stored_release as stored
from ranks import Rank, run

import evenstep
import evenstep.service as es

RELEASES = sorted(Path(__file__).parent.glob("release-*"))
of_each = pytest.mark.parametrize("release", RELEASES, ids=lambda path: path.name)


def read(path: Path) -> Any:
    return json.loads(path.read_text())


def test_a_release_is_stored() -> None:
    assert RELEASES


def go_on(rank: Rank, release: Path) -> dict[str, Any]:
    """By loader: the next steps."""
    found = {}
    for name, saved in read(release / "loaders.json")[rank.rank].items():
        loader = stored.loader(name, rank.rank)
        loader.load_state_dict(saved["state"])
        found[name] = stored.trained(loader.steps(), stored.NEXT)
        loader.close()
    return found


@of_each
def test_ranks_go_on_with_the_batches_that_would_have_followed(
    release: Path, tmp_path: Path
) -> None:
    ranks = run(go_on, 2, release, folder=tmp_path, within=120)
    for saved, got in zip(read(release / "loaders.json"), ranks, strict=True):
        assert got == {name: each["next"] for name, each in saved.items()}


def samples(nested: Any) -> list[int]:
    """The identities in steps of one rank."""
    return [nested] if isinstance(nested, int) else [n for each in nested for n in samples(each)]


@of_each
def test_another_number_of_ranks_gets_each_remaining_sample_once(release: Path) -> None:
    ranks = read(release / "loaders.json")
    resharded = 0
    for name in ranks[0]:
        if name == "a stream":
            continue  # only as many ranks as before can resume it
        before = [samples(groups) for rank in ranks for groups, _ in rank[name]["before"]]
        alone = stored.loader(name, 0, group="local")
        alone.load_state_dict(evenstep.merge_states([rank[name]["state"] for rank in ranks]))
        rest = [samples(groups) for groups, _ in stored.trained(alone.steps())]
        alone.close()
        counts = Counter(sample for each in before + rest for sample in each)
        assert counts == Counter(range(stored.COUNT)), name
        resharded += 1
    assert resharded


@pytest.fixture
def copied(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The release's files, to be written to."""
    shutil.copytree(request.param, tmp_path / "stored")
    return tmp_path / "stored"


of_each_copied = pytest.mark.parametrize(
    "copied", RELEASES, ids=lambda path: path.name, indirect=True
)


@of_each_copied
@pytest.mark.parametrize("given", ["state", "store"])
def test_a_service_goes_on_with_the_samples_that_would_have_followed(
    copied: Path, given: str
) -> None:
    job, saved = stored.job_over(copied), read(copied / "service.json")
    state = saved["state"] if given == "state" else es.stored_state(job, copied / "store")
    assert state["step"] == stored.TAKEN
    with es.start(job, backend="local", state=state, store=copied / "store") as service:
        clients = [service.client(rank) for rank in range(2)]
        assert [stored.taken(client, stored.NEXT) for client in clients] == saved["next"]


@of_each
def test_logs_and_calibrations_say_the_same(release: Path) -> None:
    told = stored.told_by(release)
    for name, before in read(release / "told.json").items():
        assert told[name].items() >= before.items(), name
