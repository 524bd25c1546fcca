"""What a Data Constructor asks for: once for all its clients, and in few messages."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from service_world import job_of, plain

import evenstep.service as es
from evenstep.errors import MeshChangedError, MismatchError
from evenstep.service.constructor.data_constructor import DataConstructor
from evenstep.service.messages import LocalHandle, Message, Reply
from evenstep.service.remote.requests import WaitTimer

PATIENCE = 30.0  # seconds
AT_WORK = threading.Lock()  # roles behind local handles do one thing at a time


class Watched:
    """A handle whose messages are recorded, and which holds back replies while its gate is shut."""

    def __init__(self, role: Any) -> None:
        self.handle, self.sent = LocalHandle(role), list[list[Message]]()
        self.gate = threading.Event()
        self.gate.set()

    def send(self, message: str, *arguments: Any) -> Reply:
        return self.send_all([(message, arguments)], alone=True)

    def send_all(self, messages: Sequence[Message], *, alone: bool = False) -> Reply:
        self.sent.append(list(messages))
        watched, reply = self, self.handle.send_all(messages)

        class Gated:
            def result(self) -> Any:
                assert watched.gate.wait(PATIENCE)
                with AT_WORK:
                    return reply.result()[0] if alone else reply.result()

        return Gated()


class World:
    def __init__(self, service: Any) -> None:
        job, layout = service.job, service._planner._metadata.layout
        self.planner = Watched(service._planner)
        self.loaders = [Watched(loader) for loader in service._loaders]
        self.constructor = DataConstructor(job, [0], self.planner, self.loaders, layout)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    # However busy the machine is, loaders that are asked prepare several steps.
    monkeypatch.setattr("evenstep.service.planner.planner._ASK_SECONDS", PATIENCE)
    job = job_of(tmp_path, mesh=es.Mesh(DP=1, CP=2), samples_per_step=12)
    with es.start(job, backend="local", loaders=2) as service:
        yield World(service)


def test_clients_that_ask_at_the_same_time_share_one_plan_and_one_fetch(world: World) -> None:
    for each in (world.planner, *world.loaders):
        each.gate.clear()
    with ThreadPoolExecutor(6) as threads:
        asked = [threads.submit(world.constructor.deliver, 0, rank) for rank in (0, 1) * 3]
        time.sleep(0.05)  # all have begun
        for each in (world.planner, *world.loaders):
            each.gate.set()
        deliveries = [each.result(PATIENCE) for each in asked]
    assert world.planner.sent == [[("plan", (0,))]]
    assert all(len(loader.sent) == 1 for loader in world.loaders)
    assert [delivery.about.rank for delivery in deliveries] == [0, 1] * 3
    for rank in (0, 1):
        one, *others = [plain(delivery.micro_batches) for delivery in deliveries[rank::2]]
        assert all(other == one for other in others)


def test_a_step_whose_samples_are_late_does_not_hold_up_the_plan_of_the_next(world: World) -> None:
    world.loaders[0].gate.clear()
    with ThreadPoolExecutor(1) as threads:
        late = threads.submit(world.constructor.deliver, 0, 0)
        while not world.loaders[0].sent:
            time.sleep(0.01)
        try:
            assert world.constructor.fetches(1, 0)
            assert not late.done()
        finally:
            world.loaders[0].gate.set()
        assert late.result(PATIENCE).about.step == 0


def test_steps_that_were_taken_are_released_with_the_next_fetch(world: World) -> None:
    for step in range(3):
        for rank in (0, 1):
            world.constructor.deliver(step, rank, step)
    for loader in world.loaders:
        names = [[name for name, _ in messages] for messages in loader.sent]
        assert names == [["stage", "fetch"], ["stage", "fetch"], ["release", "stage", "fetch"]]
        assert loader.sent[2][0][1][0] == 0
    world.constructor.deliver(3, 0, 3)
    world.constructor.release(0, 4)
    world.constructor.release(1, 4)
    assert [loader.handle.send("status").result()["staged_steps"] for loader in world.loaders] == [
        [],
        [],
    ]


def test_a_message_that_was_overtaken_takes_nothing_back(world: World) -> None:
    world.constructor.deliver(0, 0)
    world.constructor.deliver(2, 0, 1)
    world.constructor.deliver(1, 0, 0)
    assert world.constructor.status()["taken"]["0"] == 1
    assert world.constructor.deliver(0, 0, 0).about.step == 0  # a restarted client
    assert world.constructor.status()["taken"]["0"] == 0


def test_each_thread_has_its_own_timer() -> None:
    timer = WaitTimer()
    timer.add("plan", 2.0)
    with ThreadPoolExecutor(1) as threads:
        threads.submit(timer.add, "plan", 5.0).result(PATIENCE)
        assert threads.submit(lambda: dict(timer.waited)).result(PATIENCE) == {"plan": 5.0}
    assert timer.waited == {"plan": 2.0}
    timer.reset()
    assert timer.waited == {}


def together(world: World, steps: int) -> DataConstructor:
    layout = world.constructor._fetcher._layout
    job = world.constructor._job
    return DataConstructor(job, [0], world.planner, world.loaders, layout, together=steps)


def deliver_all(constructor: DataConstructor, steps: int) -> list[Any]:
    return [
        plain(constructor.deliver(step, rank, step).micro_batches)
        for step in range(steps)
        for rank in (0, 1)
    ]


def test_small_steps_are_fetched_together_and_are_the_same(world: World, tmp_path: Path) -> None:
    grouped = deliver_all(together(world, 4), 12)
    names = [[name for name, _ in messages] for messages in world.loaders[0].sent]
    staged = [sum(name == "stage" for name in each) for each in names]
    assert staged[0] == 1, "nothing is known of the size of a step before the first"
    assert max(staged) == 4
    assert sum(staged) < 12 + 4
    assert sum(map(bool, staged)) < 8
    asked = [name for messages in world.planner.sent for name, _ in messages]
    assert asked.count("plan") < 12
    told = asked.count("plan") + asked.count("has_plan")
    assert told == 12, "the planner may have failed since it has planned ahead"
    job = world.constructor._job
    with es.start(job, backend="local", loaders=2) as service:
        assert deliver_all(World(service).constructor, 12) == grouped


def test_large_steps_are_fetched_one_by_one(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evenstep.service.constructor.step_fetcher._AHEAD_BYTES", 100)
    deliver_all(together(world, 4), 6)
    for messages in world.loaders[0].sent:
        assert [name for name, _ in messages if name == "stage"] in (["stage"], [])
    assert world.planner.handle.send("status").result()["step"] == 6


def test_a_step_that_cannot_be_staged_keeps_none_from_those_before_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    constructor = together(world, 8)
    deliver_all(constructor, 1)
    loader = world.loaders[0].handle._role
    stage = loader.stage

    def failing(task: Any, keys: Any) -> int:
        if task.step == 3:
            raise MismatchError("sample of step 3 has changed")
        return int(stage(task, keys))

    monkeypatch.setattr(loader, "stage", failing)
    for step in (1, 2):
        assert constructor.deliver(step, 0, step).about is not None
    with pytest.raises(MismatchError, match="step 3"):
        constructor.deliver(3, 0, 3)


def stage_steps(world: World) -> set[int]:
    """Steps that the loaders were asked to stage since this was called last."""
    sent = [each for loader in world.loaders for messages in loader.sent for each in messages]
    for loader in world.loaders:
        loader.sent.clear()
    return {arguments[0].step for name, arguments in sent if name == "stage"}


def test_nothing_is_planned_or_fetched_ahead_of_a_step_where_the_mesh_may_change(
    world: World,
) -> None:
    constructor = together(world, 8)
    deliver_all(constructor, 1)
    taken, begun = constructor.hold()
    assert (taken, begun) == (0, 0)
    assert constructor._fetcher.plan(1) is not None  # `fetches` may ask for it
    assert world.planner.handle.send("status").result()["step"] == 2
    constructor.end_at(4)
    stage_steps(world)
    for step in (1, 2, 3):
        constructor.deliver(step, 0, step)
        assert stage_steps(world) == {1: {1}, 2: {2, 3}, 3: set()}[step]
    with pytest.raises(MeshChangedError, match="changed at step 4"):
        constructor.deliver(4, 0, 4)


def test_the_mesh_changes_once_what_was_fetched_ahead_is_here(world: World) -> None:
    constructor = together(world, 4)
    deliver_all(constructor, 1)
    plans = [world.planner.handle.send("plan", step).result() for step in range(8)]
    for loader in world.loaders:
        loader.gate.clear()
    with ThreadPoolExecutor(3) as threads:
        delivered = threads.submit(constructor.deliver, 1, 0, 1)
        while not all(len(loader.sent) > 1 for loader in world.loaders):
            time.sleep(0.001)
        late = threads.submit(constructor._fetcher.samples, plans[4])
        ended = threads.submit(constructor.end_at, 3)
        time.sleep(0.05)
        assert not ended.done(), "steps 3 and 4 may be staged after the loaders have dropped them"
        for loader in world.loaders:
            loader.gate.set()
        ended.result(PATIENCE)
        assert delivered.result(PATIENCE).about.step == 1
        with pytest.raises(MeshChangedError):
            late.result(PATIENCE)
    assert stage_steps(world) == {0, 1, 2, 3, 4}
    assert {plan.step for plan in constructor._fetcher.plans()} == {0, 1, 2}
    assert not any(step >= 3 for steps in constructor._fetcher._releases.values() for step in steps)


def test_steps_fetched_together_come_from_the_loaders_of_the_moment(world: World) -> None:
    constructor, layout = together(world, 4), world.constructor._fetcher._layout
    deliver_all(constructor, 1)
    before = list(world.loaders)
    for loader in before:
        loader.gate.clear()
    others = [Watched(loader.handle._role) for loader in before]
    with ThreadPoolExecutor(2) as threads:
        delivered = threads.submit(constructor.deliver, 1, 0, 1)
        while not all(len(loader.sent) > 1 for loader in before):
            time.sleep(0.001)
        changed = threads.submit(constructor.use_loaders, others, layout)
        time.sleep(0.05)
        assert not changed.done(), "the loaders before are still asked for steps 1 to 4"
        for loader in before:
            loader.gate.set()
        changed.result(PATIENCE)
        delivered.result(PATIENCE)
    stage_steps(world)
    world.loaders = others
    got = [plain(constructor.deliver(step, 0, step).micro_batches) for step in range(1, 10)]
    assert min(stage_steps(world)) == 5
    assert all(not loader.sent for loader in before)
    with es.start(constructor._job, backend="local", loaders=2) as service:
        anew = World(service).constructor
        assert got == [plain(anew.deliver(step, 0, step).micro_batches) for step in range(1, 10)]


def test_loaders_are_not_ended_while_samples_of_a_dropped_step_are_fetched(world: World) -> None:
    """A message that is late requests a step that clients have taken since."""
    old, new = world.loaders[0], Watched(world.loaders[0].handle._role)
    old.gate.clear()
    with ThreadPoolExecutor(2) as threads:
        late = threads.submit(world.constructor.deliver, 0, 0)
        while not old.sent:
            time.sleep(0.01)
        for rank in (0, 1):
            world.constructor.release(rank, 1)
        layout = world.constructor._fetcher._layout
        changed = threads.submit(world.constructor.use_loaders, [new, world.loaders[1]], layout)
        time.sleep(0.05)
        assert not changed.done()
        old.gate.set()
        changed.result(PATIENCE)
        assert late.result(PATIENCE).about.step == 0
