"""Ranks meet to save at the registry, which may die before it has answered them all."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import evenstep.service as es
from evenstep.service.remote.common_state import CommonState
from evenstep.service.remote.roads import Answer
from evenstep.service.store.run_store import RunStore
from evenstep.service.stored_planner import StoredPlanner
from evenstep.strategy import BufferedMetadata, DGraph, LoadingPlan
from evenstep.strategy.sample_table import SampleTable

STEP = 2
ROWS = np.arange(64)
SAMPLES = SampleTable(("web",), 0 * ROWS, ROWS, 0.0 * ROWS, ROWS, {"text": 1 + ROWS % 9})


def plan(graph: DGraph, mesh: Any, step: int) -> LoadingPlan:
    return graph.mix().distribute("DP").balance("greedy").plan()


class Planners:
    """A planner after the other on one store, asked as a registry asks."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._job = es.Job(
            sources=[es.Source("web", [{"input_ids": [1]}])],
            mesh={"DP": 3},
            strategy=plan,
            max_tokens=64,
            samples_per_step=6,
        )
        self.begin()

    def begin(self) -> None:
        store = RunStore(self._folder, "run")
        self._planner = StoredPlanner(self._job, BufferedMetadata(SAMPLES), store)
        self._planner.plan(STEP)

    async def ask(self, message: str, *arguments: Any) -> Answer:
        return Answer([getattr(self._planner, message)(*arguments)])


async def meet(common: CommonState, clients: dict[int, int]) -> list[Answer | None]:
    """What the clients, by rank their numbers, are answered; None if they still wait."""
    asked = [asyncio.ensure_future(common.meet(rank, STEP, n)) for rank, n in clients.items()]
    await asyncio.wait(asked, timeout=0.05)
    answers = [each.result() if each.done() else None for each in asked]
    for each in asked:
        each.cancel()
    return answers


@pytest.mark.parametrize("planner_dies", [False, True])
def test_a_rank_that_was_not_answered_does_not_wait_for_one_that_was(
    tmp_path: Path, planner_dies: bool
) -> None:
    async def meetings() -> None:
        planners: Any = Planners(tmp_path)
        assert await meet(CommonState(planners, {}), {0: 70}) == [None]
        first, *lost = await meet(CommonState(planners, {}), {0: 70, 1: 71, 2: 72})
        assert first is not None
        assert None not in lost
        for late in ({1: 71}, {2: 72}):  # the next registry may die, too
            if planner_dies:
                planners.begin()
            (again,) = await meet(CommonState(planners, {}), late)
            assert again is not None
            assert again.value == first.value
        # All that were started again meet once more.
        assert await meet(CommonState(planners, {0: 80, 1: 81, 2: 82}), {1: 81}) == [None]

    asyncio.run(meetings())


def test_a_rank_that_was_started_again_may_come_after_those_who_went_on(tmp_path: Path) -> None:
    """A launcher has killed rank 1, which was waiting here, and starts it again after rank 0."""

    async def meetings() -> None:
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
            common.begins_anew(rank)
        again = await meet(common, {1: 81, 2: 82})
        assert [each and each.value for each in again] == [first.value] * 2
        others = asyncio.gather(*(common.meet(rank, STEP + 1, 80 + rank) for rank in (1, 2)))
        assert (await gone_on).error is None
        assert all(each.error is None for each in await others)

    asyncio.run(meetings())
