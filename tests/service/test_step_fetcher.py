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
from evenstep.service.constructor.data_constructor import DataConstructor
from evenstep.service.messages import LocalHandle, Message, Reply, message
from evenstep.service.planner.planner import Planner

PATIENCE = 30.0  # seconds
AT_WORK = threading.Lock()  # roles behind local handles do one thing at a time


class Watched:
    """A handle whose messages are recorded, and which holds back replies while its gate is shut."""

    def __init__(self, role: Any) -> None:
        self.handle, self.sent = LocalHandle(role), list[list[Message]]()
        self.gate = threading.Event()
        self.gate.set()

    def send(self, method: Any, *args: Any, **named: Any) -> Reply[Any]:
        return self.send_all([message(method, *args, **named)], alone=True)

    def send_all(self, messages: Sequence[Message], *, alone: bool = False) -> Reply[Any]:
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
def world(tmp_path: Path) -> Iterator[World]:
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
    assert world.planner.sent == [[message(Planner.plan, 0)]]
    assert all(len(loader.sent) == 1 for loader in world.loaders)
    assert [delivery.about.client for delivery in deliveries] == [0, 1] * 3
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


def test_a_message_that_was_overtaken_takes_nothing_back(world: World) -> None:
    world.constructor.deliver(0, 0)
    world.constructor.deliver(2, 0, 1)
    world.constructor.deliver(1, 0, 0)
    assert world.constructor.status()["taken"]["0"] == 1
    assert world.constructor.deliver(0, 0, 0).about.step == 0  # a restarted client
    assert world.constructor.status()["taken"]["0"] == 0


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
