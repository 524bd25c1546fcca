"""A rank that is far ahead of others waits for them, and for ever for none."""

from __future__ import annotations

import asyncio
import logging
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from ray_cluster import until
from service_world import comparable, in_one_process, job_of

import evenstep.service as es
from evenstep.service.registry.pace import FREE, Pace, Room
from evenstep.service.registry.registry import JobRegistry

KEPT = 4
DRAWS: dict[str, Any] = {"stop": "first_exhausted", "samples_per_step": 4}


def test_no_plan_is_pushed_out_that_a_rank_needs_and_the_rank_furthest_behind_is_never_held() -> (
    None
):
    draw = random.Random(5)
    for ranks in (1, 2, 7):
        pace, comes = Pace(KEPT, 60.0), dict.fromkeys(range(ranks), 3)
        for rank in comes:
            pace.join(rank, 1, 3, 0.0)
        for _ in range(300):
            rank = draw.randrange(ranks)
            may = comes[rank] < pace.room.limit
            assert may == (comes[rank] < min(comes.values()) + KEPT)
            assert may or comes[rank] > min(comes.values())
            if may:
                comes[rank] += 1
                pace.came(rank, 1, comes[rank], 0.0)
        assert min(comes.values()) > 20


def test_who_has_taken_no_part_or_has_left_or_is_late_holds_nobody() -> None:
    pace = Pace(KEPT, 60.0)
    pace.came(0, 1, 9, 0.0)  # of a client that was let go, or of another mesh
    assert pace.room is FREE
    for rank in range(3):
        pace.join(rank, 1, 0, 0.0)
    pace.came(0, 1, 4, 1.0)
    assert pace.held() == ["rank 0 waits: it comes to step 4, 4 ahead of ranks 1, 2 at step 0"]
    pace.leave(1, 1)
    assert pace.held() == ["rank 0 waits: it comes to step 4, 4 ahead of rank 2 at step 0"]
    pace.join(2, 5, 2, 30.0)  # a trainer that begins again
    pace.leave(2, 1)
    pace.came(2, 1, 9, 31.0)  # both of the one before
    assert pace.room.limit == 2 + KEPT
    pace.came(0, 1, 6, 32.0)
    assert pace.drop_late(90.0) == []
    (said,) = pace.drop_late(90.5)
    assert said.startswith("rank 2 has not come beyond step 2 for 60 s, and is not waited for any")
    assert pace.room.limit == 6 + KEPT
    assert pace.drop_late(1000.0) == []  # it holds nobody


def test_a_registry_that_has_restarted_hears_from_all_clients_of_its_mesh_who_is_behind() -> None:
    async def answered() -> Any:
        registry = JobRegistry()
        registry._pace = Pace(KEPT, 60.0)
        mesh = SimpleNamespace(info=SimpleNamespace(mesh=1), end_of=lambda mesh: None)
        registry._state = cast(Any, mesh)
        asked = [
            asyncio.ensure_future(registry.failed(mesh, None, comes))
            for mesh, comes in ((1, (2, 7, 3)), (0, (1, 6, 0)), (1, None))
        ]
        await asyncio.sleep(0)
        for each in asked:
            each.cancel()
        return await registry.room(0, 5, 1, 9), await registry.room(1, 6, 0, 0)

    assert asyncio.run(answered()) == (Room(3 + KEPT, {2: 3}), FREE)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Any]:
    pytest.importorskip("zmq", reason="pyzmq is not installed")
    job = job_of(tmp_path, mesh=es.Mesh(DP=3), plans_kept=KEPT, **DRAWS)
    with es.start(job, backend="processes", name=f"pace-{time.time_ns()}") as service:
        yield service


def test_a_fast_trainer_waits_for_a_slow_one_and_both_get_all_steps(
    service: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fast, slow = (service.client(rank) for rank in range(2))
    taken: dict[int, list[Any]] = {0: [], 1: [next(slow)]}
    running = threading.Thread(target=lambda: taken[0].extend(fast))
    with caplog.at_level(logging.WARNING):
        running.start()
        until(lambda: service.status()["held"], "a rank that is held")
        until(lambda: caplog.records, "a warning")
    said = f"rank 0 waits: it comes to step {1 + KEPT}, {KEPT} ahead of rank 1 at step 1"
    assert service.status()["held"] == [said]
    assert [record.getMessage() for record in caplog.records] == [said]
    assert fast.step == 1 + KEPT
    taken[1] += slow
    running.join(60)
    assert service.status()["held"] == []
    whole = job_of(tmp_path, mesh=es.Mesh(DP=3), plans_kept=64, **DRAWS)
    undisturbed = in_one_process(whole, ranks=[0, 1])
    assert [comparable(taken[rank]) for rank in range(2)] == undisturbed


def test_a_trainer_that_has_left_holds_nobody_and_one_that_takes_no_steps_for_some_time(
    service: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(service._registry._pace, "_patience", 1.0)
    fast, gone, still = (service.client(rank) for rank in range(3))
    next(gone)
    gone.close()
    next(still)
    assert len(list(fast)) > 2 * KEPT
    held, late = (record.getMessage() for record in caplog.records)
    assert held.endswith(f"{KEPT} ahead of rank 2 at step 1")
    assert late.startswith("rank 2 has not come beyond step 1 for 1 s, and is not waited for any")
