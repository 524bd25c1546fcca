"""Two hosts of two ranks each, joined by a cable that is slow, loses frames, and passes nothing for
a while or for ever, in both directions or in one."""

from __future__ import annotations

import hashlib
import math
import re
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from faults import loader_over
from ranks import Job, Outcome, Rank, run

import evenstep
from documents import Documents
from evenstep.errors import PeerError
from hosts import Hosts

COUNT, RANKS, LIMIT = 300, 4, 4
POOR = {"delay": 0.05, "loss": 0.01}
WITHIN = LIMIT + 8.0  # seconds from the cut to the end of every rank
WAYS = ["both", *(pytest.param(way, marks=pytest.mark.soak) for way in ("there", "back"))]


@dataclass(frozen=True)
class Trained:
    batches: list[tuple[tuple[int, ...], str]]
    """Samples, and a digest of all tensors."""
    states: list[dict[str, Any]]
    """After each of them."""
    error: str
    ended: float
    """Seconds of the system's clock."""
    longest: float
    """Seconds that it has waited for a batch."""


def train(rank: Rank, cut: Path | None, states: list[dict[str, Any]]) -> Trained:
    """The rest of the epoch. Rests after the third step until the test has cut the cable."""
    faults = evenstep.Faults(peer_timeout=LIMIT)
    loader = loader_over(Documents(COUNT), faults=faults, shuffle=True, seed=4)
    if states:
        loader.load_state_dict(states[rank.rank])
    batches, saved, error = [], [loader.state_dict()], ""
    before, longest = math.inf, 0.0
    try:
        for batch, step in loader.steps():
            longest = max(longest, time.monotonic() - before)
            tensors = b"".join(batch[name].numpy().tobytes() for name in sorted(batch))
            batches.append((step.indices or (), hashlib.sha256(tensors).hexdigest()))
            saved.append(loader.state_dict())
            if len(batches) == 3 and cut is not None:
                rank.say("training")
                while not cut.exists():
                    time.sleep(0.01)
            before = time.monotonic()
    except PeerError as raised:
        error = str(raised)
    return Trained(batches, saved, error, time.monotonic(), longest)


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[list[Any]]:
    """[ranks] the batches of a job on one host."""
    trained = run(train, RANKS, None, [], folder=tmp_path_factory.mktemp("one"))
    batches = [each.batches for each in trained]
    assert len({len(own) for own in batches}) == 1
    samples = [index for own in batches for indices, _ in own for index in indices]
    assert sorted(samples) == list(range(COUNT))
    return batches


@contextmanager
def training(hosts: Hosts, folder: Path) -> Iterator[Job]:
    """A job over a poor network whose ranks have taken three steps, and rest until `go_on`."""
    hosts.cable.change(**POOR)
    with Job(train, RANKS, folder / "cut", [], folder=folder, prepare=hosts.each(2)) as job:
        for rank in range(RANKS):
            job.heard(rank, "training")
        yield job


def go_on(folder: Path) -> None:
    (folder / "cut").touch()


def cut(hosts: Hosts, way: str, is_cut: bool) -> None:
    towards = {"both": None, "there": hosts.second, "back": hosts.first}[way]
    hosts.cable.change(towards=towards, cut=is_cut)


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_a_cut_shorter_than_the_limit_changes_no_batch(
    tmp_path: Path, hosts: Hosts, expected: list[list[Any]], way: str
) -> None:
    with training(hosts, tmp_path) as job:
        cut(hosts, way, True)
        go_on(tmp_path)
        time.sleep(LIMIT - 2.0)
        cut(hosts, way, False)
        outcomes = job.join(60)
    for outcome in outcomes:
        assert not outcome.error, outcome.traceback
        assert not outcome.value.error
    assert [outcome.value.batches for outcome in outcomes] == expected
    longest = max(outcome.value.longest for outcome in outcomes)
    print(f"{way}: a batch came {longest - (LIMIT - 2):.1f} s after the network was there again")
    assert longest > 1, "no rank has needed the network"
    assert all(lost for _, lost in hosts.cable.change())


def resumed(outcomes: list[Outcome], folder: Path) -> None:
    """Goes on after the last step that all ranks have taken; each sample comes once."""
    trained = [outcome.value for outcome in outcomes]
    step = min(len(each.batches) for each in trained)
    rest = run(train, RANKS, None, [each.states[step] for each in trained], folder=folder)
    batches = [(*old.batches[:step], *new.batches) for old, new in zip(trained, rest)]
    samples = [index for own in batches for indices, _ in own for index in indices]
    assert sorted(samples) == list(range(COUNT))


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_a_cut_longer_than_the_limit_is_an_error_that_names_who_is_not_heard(
    tmp_path: Path, hosts: Hosts, way: str
) -> None:
    with training(hosts, tmp_path) as job:
        cut(hosts, way, True)
        begin = time.monotonic()
        go_on(tmp_path)
        outcomes = job.join(WITHIN)
    for rank, outcome in enumerate(outcomes):
        assert not outcome.error, outcome.traceback
        print(f"{way}: rank {rank}: {outcome.value.ended - begin:.1f} s: {outcome.value.error}")
        assert f"on host{1 - rank // 2})" in outcome.value.error
        assert re.search("stopped answering|reset a connection", outcome.value.error)
        assert ") died" not in outcome.value.error
    resumed(outcomes, tmp_path / "resumed")


@pytest.mark.slow
def test_a_rank_that_is_killed_beyond_a_poor_network_is_an_error(
    tmp_path: Path, hosts: Hosts
) -> None:
    with training(hosts, tmp_path) as job:
        job.signal(2, signal.SIGKILL)
        begin = time.monotonic()
        go_on(tmp_path)
        outcomes = job.join(WITHIN)
    for rank, outcome in enumerate(outcomes):
        if rank != 2:
            print(
                f"killed: rank {rank}: {outcome.value.ended - begin:.1f} s: {outcome.value.error}"
            )
            assert "rank 2 (process" in outcome.value.error
            assert "died" in outcome.value.error
