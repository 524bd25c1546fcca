"""A planner that dies at any moment and is made anew from its store plans as if it had not."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from random import Random
from typing import Any

import numpy as np
import pytest
from faulty_storage import Crash, FaultyStorage, crash_after, crash_before, torn
from hypothesis import example, given
from hypothesis import strategies as st
from service_world import new_job

import evenstep
import evenstep.service as es
from evenstep.errors import ConfigurationError, EvenstepError, MismatchError, SupersededError
from evenstep.mixture import FeedbackSchedule
from evenstep.mixture.sample_table import SampleTable
from evenstep.service.planner import stored_planner
from evenstep.service.planner.changes import Change
from evenstep.service.planner.planner import Planner
from evenstep.service.planner.planner_state import PlannerState
from evenstep.service.planner.store.run_store import RunStore
from evenstep.service.planner.stored_planner import StoredPlanner, UnstoredPlanner
from evenstep.strategy import BufferedMetadata, DGraph, LoadingPlan, to_json

NAMES = ("web", "code", "books")
KEPT = 6
URL = "faulty://store"


def lengths(count: int = 8000) -> BufferedMetadata:
    source = np.repeat(np.arange(3), count)
    position = np.tile(np.arange(count), 3)
    text = 1 + (position * 7 + source * 11) % 50
    columns = {"text": text, "supervised": text // 2}
    return BufferedMetadata(
        SampleTable(NAMES, source, position, np.zeros(3 * count), position, columns)
    )


def plan(graph: DGraph, mesh: Any, step: int) -> LoadingPlan:
    return graph.mix().distribute("DP").balance("greedy").plan()


def follow(last: Any, signals: Any) -> Any:
    return {name: 1.0 + signals["loss"].get(name, 0.0) for name in NAMES}


def job_of(**options: Any) -> es.Job:
    given = {
        "sources": [es.Source(name, [{"input_ids": [1]}]) for name in NAMES],
        "mesh": {"DP": 2},
        "strategy": plan,
        "max_tokens": 256,
        "samples_per_step": 16,
        "prefetch": 1,
        "plans_kept": KEPT,
        "schedule": FEEDBACK,
        **options,
    }
    return new_job(**given)


FEEDBACK = FeedbackSchedule(initial=dict.fromkeys(NAMES, 1.0), function=follow)


def plan_by_feedback(graph: DGraph, mesh: Any, step: int) -> LoadingPlan:
    return graph.mix(FEEDBACK).distribute("DP").balance("greedy").plan()


JOB, METADATA = job_of(), lengths()
CONSTANT = job_of(schedule=None)
BY_STRATEGY = job_of(schedule=None, strategy=plan_by_feedback)
# Windows of 16 groups: so there are rounds of few steps, and updates that begin in one of them and
# end in the next.
BY_POLICY = job_of(
    policy=evenstep.Even(64, packed=True), strategy=None, max_tokens=None, micro_batches=3
)
BY_SHARES = job_of(policy=evenstep.PoolSort(4), strategy=None, max_tokens=None, micro_batches=2)


@pytest.fixture(autouse=True)
def _empty() -> Iterator[None]:
    FaultyStorage.clear()
    yield
    FaultyStorage.clear()


class SometimesWrites:
    """A writer that writes at once, or not at all, as it is told."""

    draw: Callable[[], bool]

    def __init__(self, store: RunStore, written_out: Any) -> None:
        self.store, self.written_out = store, written_out

    def add(self, state: PlannerState) -> None:
        if type(self).draw():
            self.store.save_state(state.step, self.written_out(state))

    def close(self) -> None:
        pass


def stored(job: es.Job = JOB, **options: Any) -> StoredPlanner:
    return StoredPlanner(job, METADATA, RunStore(URL, "run", keep=KEPT + 2), **options)


CHANGES = [
    *(("weights", {"web": 1.0}), ("weights", {"web": 0.2, "code": 3}), ("weights", None)),
    *(("drop", "code"), ("drop", "books"), ("add", "code"), ("cancel", None), ("end", None)),
]
OPERATION = st.one_of(
    st.tuples(st.just("plan"), st.integers(1, 3)),
    st.tuples(st.just("report"), st.integers(1, 9), st.integers(0, 1), st.integers(0, 3)),
    st.tuples(st.just("again"), st.integers(1, KEPT)),
    st.tuples(st.just("state"), st.integers(0, KEPT)),
    st.tuples(st.just("remesh"), st.integers(0, KEPT), st.integers(2, 4)),
    st.tuples(st.just("change"), st.sampled_from(CHANGES), st.integers(0, 3)),
)


def carried_out(planner: Planner, operation: tuple[Any, ...], begin: int) -> Any:
    """What a planner answers.

    Args:
        begin: its next step, of which steps are counted.
    """
    kind, *numbers = operation
    if kind == "change":
        (what, value), ahead = numbers
        asked = Change(kind=what, value=value, by="ana", time=float(begin), step=begin + ahead)
        while (told := planner.change(asked, token=planner.begin_change(), first=begin)) is None:
            pass
        return told
    if kind == "report":
        back, rank, loss = numbers
        if begin == 0:  # nothing is trained on yet
            return None
        signals = {"loss": {NAMES[loss % 3]: 1.0 + begin + loss / 8}}
        return planner.report(max(begin - back, 0), rank, signals)
    if kind == "state":
        return planner.state_dict(max(begin - numbers[0], 0), taken=True)
    if kind == "remesh":
        state = planner.remesh({"DP": numbers[1]}, max(begin - numbers[0], 0))
        return {**state, "job": None}  # that before the mesh, or, told twice, that on it
    step = begin + numbers[0] - 1 if kind == "plan" else max(begin - numbers[0], 0)
    made = planner.plan(step)
    return None if made is None else to_json(made)


REPORTED_AGAIN_AFTER_A_REMESH = [
    *(("plan", 1), ("report", 1, 1, 0), ("plan", 2), ("plan", 3), ("report", 2, 0, 0)),
    *(("remesh", 1, 2), ("plan", 1), ("plan", 1), ("report", 7, 1, 0), ("plan", 1)),
]


@example(JOB, REPORTED_AGAIN_AFTER_A_REMESH, 0)
@given(
    st.sampled_from([JOB, CONSTANT, BY_STRATEGY, BY_POLICY, BY_SHARES]),
    st.lists(OPERATION, min_size=4, max_size=40),
    st.integers(0, 10**6),
)
def test_plans_and_states_are_those_of_a_planner_that_never_died(
    job: es.Job, operations: list[tuple[Any, ...]], seed: int
) -> None:
    FaultyStorage.clear()
    random = Random(seed)
    SometimesWrites.draw = lambda: random.random() < 0.4
    faults = [crash_before, torn, crash_after]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stored_planner, "StateWriter", SometimesWrites)
        reference = Planner(job, METADATA)
        planner = stored(job)
        dead: list[StoredPlanner] = []
        for operation in operations:
            if random.random() < 0.4:
                FaultyStorage.strike(random.randrange(8), random.choice(faults))
            begin = reference.step
            try:
                expected = carried_out(reference, operation, begin)
            except ConfigurationError:  # it is not kept any more
                continue
            while True:
                try:
                    if planner is None:
                        planner = stored(job)
                    answer = carried_out(planner, operation, begin)
                except Crash:
                    dead += [planner] if planner is not None else []
                    planner = None
                    again = random.randrange(30) if random.random() < 0.4 else -1
                    FaultyStorage.strike(again, random.choice(faults))
                else:
                    break
            assert answer == expected
            if dead and random.random() < 0.3:  # one that was only slow
                FaultyStorage.strike(-1, crash_before)
                with pytest.raises(SupersededError):
                    dead[-1].report(10**6, 0, {"loss": {"web": 99.0}})  # that no plan has used
                with suppress(EvenstepError):  # not if weights do not follow reports
                    dead[-1].plan(dead[-1].step + 3)
        FaultyStorage.strike(-1, crash_before)
        assert stored(job).state_dict(reference.step, taken=True) == reference.state_dict()


def test_a_planner_that_has_ended_ends_again() -> None:
    job, few = job_of(schedule=None, stop="first_exhausted"), lengths(40)
    planner = StoredPlanner(job, few, RunStore(URL, "run"))
    assert planner.plan(20) is None
    ended = planner.status()["ended_at"]
    assert ended > 3
    planner.close()
    again = StoredPlanner(job, few, RunStore(URL, "run"))
    assert again.plan(ended) is None
    assert again.status()["ended_at"] == ended
    again.close()


def test_another_job_is_refused_and_so_is_a_store_that_cannot_be_written(tmp_path: Any) -> None:
    stored().close()
    with pytest.raises(MismatchError, match="another job"):
        stored(job_of(seed=4))
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match="cannot"):
        StoredPlanner(JOB, METADATA, RunStore(tmp_path / "file", "run"))


def test_a_planner_without_its_store_refuses_weights_that_follow_reports() -> None:
    with pytest.raises(ConfigurationError, match="weights may follow what trainers report"):
        UnstoredPlanner(JOB, METADATA)
    planner = UnstoredPlanner(BY_STRATEGY, METADATA)
    with pytest.raises(ConfigurationError, match="weights may follow what trainers report"):
        planner.plan(0)
    assert UnstoredPlanner(job_of(schedule=None), METADATA).plan(0) is not None


def test_the_status_says_why_the_store_cannot_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(storage: FaultyStorage, path: str, value: bytes, **_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def said_after(step: int, before: str | None) -> str | None:
        """Once it has changed."""
        planner.plan(step)
        while (said := planner.status()["store_error"]) == before:
            time.sleep(0.01)
        return said

    planner = stored(CONSTANT)
    assert planner.status()["store_error"] is None
    with monkeypatch.context() as patch:
        patch.setattr(FaultyStorage, "pipe_file", full)
        error = said_after(0, None)
        assert error is not None
        assert "No space left on device; check the URL, the space" in error
    assert said_after(1, error) is None
    planner.close()
