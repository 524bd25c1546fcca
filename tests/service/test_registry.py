"""The registry, where ranks meet to save: it may die before it has answered them all, and tells
what it has missed."""

from __future__ import annotations

import asyncio
import functools
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from test_stored_planner import METADATA, job_of

from evenstep.errors import EvenstepError, MeshChangedError
from evenstep.service.messages import LocalHandle, Reply
from evenstep.service.planner.store.run_store import RunStore
from evenstep.service.planner.stored_planner import StoredPlanner
from evenstep.service.registry import common_state
from evenstep.service.registry.common_state import CommonState
from evenstep.service.registry.role_status import EventLog
from evenstep.service.registry.role_watch import RoleWatch
from evenstep.service.remote.channels import Answer, Location, RoleGoneError, RolePlace
from evenstep.service.remote.handles import RemoteHandle

STEP = 2
PATIENCE = 30.0  # seconds


def in_loop(test: Callable[..., Any]) -> Callable[..., None]:
    """A test that awaits."""

    @functools.wraps(test)
    def run(*args: Any, **named: Any) -> None:
        asyncio.run(test(*args, **named))

    return run


class Planners:
    """A planner after the other on one store, asked as a registry asks."""

    def __init__(self, folder: Path, planned: int = STEP + 1, dp: int = 3) -> None:
        self._folder, self._planned = folder, planned
        self._job = job_of(mesh={"DP": dp}, samples_per_step=6, schedule=None)
        self.begin()

    def begin(self) -> None:
        store = RunStore(self._folder, "run")
        self.planner = StoredPlanner(self._job, METADATA, store)
        for step in range(self._planned):
            self.planner.plan(step)

    def send(self, message: str, *arguments: Any) -> Reply:
        return LocalHandle(self.planner).send(message, *arguments)


@pytest.fixture(autouse=True)
def answered_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def at_once(function: Callable[..., Any], *arguments: Any) -> Any:
        return function(*arguments)

    monkeypatch.setattr(common_state, "in_thread", at_once)


async def meet(
    common: CommonState, clients: dict[int, int], seconds: float = PATIENCE
) -> list[Answer | None]:
    """What the clients, by rank their numbers, are answered; None if they still wait."""
    asked = [asyncio.ensure_future(common.meet(rank, STEP, n)) for rank, n in clients.items()]
    await asyncio.wait(asked, timeout=seconds)
    answers = [each.result() if each.done() else None for each in asked]
    for each in asked:
        each.cancel()
    return answers


@pytest.mark.parametrize("planner_dies", [False, True])
@in_loop
async def test_a_rank_that_was_not_answered_does_not_wait_for_one_that_was(
    tmp_path: Path, planner_dies: bool
) -> None:
    planners: Any = Planners(tmp_path)
    assert await meet(CommonState(planners, {}), {0: 70}, 0.05) == [None]
    first, *lost = await meet(CommonState(planners, {}), {0: 70, 1: 71, 2: 72})
    assert first is not None
    assert None not in lost
    for late in ({1: 71}, {2: 72}):  # the next registry may die, too
        if planner_dies:
            planners.begin()
        (again,) = await meet(CommonState(planners, {}), late)
        assert again is not None
        assert again.value == first.value
    started_again = CommonState(planners, {0: 80, 1: 81, 2: 82})
    (again,) = await meet(started_again, {1: 81})
    assert again is not None
    assert again.value == first.value


@in_loop
async def test_a_rank_that_was_started_again_may_come_after_those_who_went_on(
    tmp_path: Path,
) -> None:
    """A launcher has killed rank 1, which was waiting here, and starts it again after rank 0."""
    clients = {0: 70, 1: 71, 2: 72}
    common = CommonState(Planners(tmp_path), clients)  # type: ignore[arg-type]
    ghosts = asyncio.ensure_future(meet(common, {1: 71, 2: 72}))
    await asyncio.sleep(0)
    clients[0] = 80
    (first,) = await meet(common, {0: 80})
    assert first is not None
    await ghosts
    gone_on = asyncio.ensure_future(common.meet(0, STEP + 1, 80))
    await asyncio.sleep(0)
    for rank in (1, 2):
        clients[rank] = 80 + rank
        common.note_restart(rank)
    again = await meet(common, {1: 81, 2: 82})
    assert [each and each.value for each in again] == [first.value] * 2
    others = asyncio.gather(*(common.meet(rank, STEP + 1, 80 + rank) for rank in (1, 2)))
    assert (await gone_on).error is None
    assert all(each.error is None for each in await others)


@in_loop
async def test_ranks_that_are_started_again_wait_for_those_that_have_yet_to_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until then, those that have not begun are at a later step."""
    clients = {0: 70, 1: 71, 2: 72}
    common = CommonState(Planners(tmp_path), clients)  # type: ignore[arg-type]
    ghost = asyncio.ensure_future(common.meet(1, STEP + 1, 71))
    common.took_step(2, STEP)
    await asyncio.sleep(0.01)
    clients[0] = 80
    common.note_restart(0)
    first = asyncio.ensure_future(common.meet(0, STEP, 80))
    await asyncio.sleep(0.01)
    assert not first.done()
    for rank in (1, 2):
        clients[rank] = 80 + rank
        common.note_restart(rank)
    assert "newer client" in str((await ghost).error)
    others = await asyncio.gather(*(common.meet(rank, STEP, 80 + rank) for rank in (1, 2)))
    assert [each.value for each in others] == [(await first).value] * 2
    # One that does not begin is not waited for for ever.
    monkeypatch.setattr(common_state, "_RESTART_SECONDS", 0.02)
    common.note_failure(1, EvenstepError("bad sample"))
    clients[0] = 90
    common.note_restart(0)
    asked = asyncio.ensure_future(common.meet(0, STEP + 1, 90))
    await asyncio.sleep(0.005)
    assert not asked.done()
    assert "bad sample" in str((await asked).error)


@in_loop
async def test_what_a_rank_said_before_counts_no_more_though_it_comes_later(tmp_path: Path) -> None:
    common = CommonState(Planners(tmp_path), {0: 70, 1: 71, 2: 72})  # type: ignore[arg-type]
    for step in (STEP, STEP - 1):
        common.took_step(1, step)
    assert "not by rank 1 at step 3" in str((await common.meet(0, STEP, 70)).error)


@in_loop
async def test_a_message_that_comes_late_again_does_not_stand_in_for_the_next_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A restarted rank gets the state of its own step, whatever its last client still asks for."""

    async def slowly(function: Callable[..., Any], *arguments: Any) -> Any:
        await asyncio.sleep(0.01)
        return function(*arguments)

    monkeypatch.setattr(common_state, "in_thread", slowly)
    clients = {0: 70}
    planners: Any = Planners(tmp_path, dp=1)
    common = CommonState(planners, clients)
    state = {step: planners.planner.state_dict(step) for step in (STEP, STEP + 1)}
    late = asyncio.ensure_future(common.meet(0, STEP, 70))
    await asyncio.sleep(0)
    clients[0] = 80
    common.note_restart(0)
    assert "newer client" in str((await late).error)
    late = asyncio.ensure_future(common.meet(0, STEP, 80))
    while common._meeting is None or not common._meeting.complete:
        await asyncio.sleep(0.001)
    clients[0] = 90
    common.note_restart(0)
    assert (await common.meet(0, STEP + 1, 90)).value == [state[STEP + 1]]
    assert (await late).value == [state[STEP]]


@in_loop
async def test_ranks_of_a_new_mesh_wait_for_each_other_alone(tmp_path: Path) -> None:
    """And those of one that gets no step, as it has ended where it began, for nobody."""
    planners: Any = Planners(tmp_path)
    ends: dict[int, int] = {}
    common = CommonState(planners, {}, ends.get)
    first = asyncio.ensure_future(common.meet(0, STEP, 70, begins=True))
    await asyncio.sleep(0.01)
    ends[0] = STEP
    common.end_mesh(STEP)
    for error in ((await first).error, (await common.meet(1, STEP, 71, begins=True)).error):
        assert isinstance(error, MeshChangedError)
    before = asyncio.ensure_future(common.meet(2, STEP, 72))  # it has taken steps
    await asyncio.sleep(0.01)
    planners.planner.remesh({"DP": 2}, STEP)
    new = [asyncio.ensure_future(common.meet(0, STEP, 80, 1, begins=True))]
    await asyncio.sleep(0.01)
    assert not new[0].done()
    new.append(asyncio.ensure_future(common.meet(1, STEP, 81, 1, begins=True)))
    answers = await asyncio.wait_for(asyncio.gather(before, *new), 5)
    state = planners.planner.state_dict(STEP)
    assert [each.value for each in answers] == [[state]] * 3


class Line:
    """A channel of a process that lives, or not."""

    def __init__(self, lives: bool) -> None:
        self.lives = lives

    def send(self, messages: Any) -> Line:
        return self

    async def later(self) -> Answer:
        if not self.lives:
            raise RoleGoneError
        await asyncio.Event().wait()
        raise AssertionError

    def close(self) -> None:
        pass


class Found:
    """Finds the process that has followed."""

    def __init__(self, location: Location) -> None:
        self.location = location

    def locate(self, dead: Location | None) -> Location:
        return self.location


def test_a_registry_that_restarts_tells_once_and_truly_what_it_has_missed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "events.jsonl"
    now = time.time_ns()
    followed = now - 60_000_000_000
    dead = Location(cast(Any, Line(False)), 41, "far", now - 90_000_000_000)
    found = Location(cast(Any, Line(True)), 42, "near", followed)

    async def watch() -> list[dict[str, Any]]:
        handle = RemoteHandle(RolePlace("Source Loader 0", dead, Found(found)))
        watched = RoleWatch(handle, EventLog(path), None, None)
        task = asyncio.ensure_future(watched.run())
        await asyncio.sleep(0.3)
        task.cancel()
        return list(watched.restarts)

    (restart,) = asyncio.run(watch())
    assert restart["time"] == followed / 1e9
    assert asyncio.run(watch()) == []  # the next registry
    (line,) = map(json.loads, path.read_text().splitlines())
    assert (line["event"], line["time"]) == ("restarted", followed / 1e9)
    assert (line["died"]["process"], line["followed_by"]["process"]) == (41, 42)
    clock = time.strftime("%H:%M:%S", time.localtime(followed / 1e9))
    (said,) = [record.getMessage() for record in caplog.records]
    assert said == (
        "Source Loader 0 (process 41 on far) died before this registry started; process 42 on "
        f"near plays its role since {clock}"
    )
