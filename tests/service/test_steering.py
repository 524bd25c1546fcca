"""A running job is changed by hand: by weights, sources, pauses, its end, loaders and the mesh."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from service_world import comparable, in_one_process, job_of, new_job, sources, steps_of
from test_stored_planner import METADATA
from test_stored_planner import job_of as planner_job_of

import evenstep
import evenstep.service as es
from evenstep.errors import ConfigurationError
from evenstep.mixture import FeedbackSchedule
from evenstep.service.planner.changes import Change
from evenstep.service.planner.planner import Planner
from evenstep.service.planner.store.run_store import RunStore
from evenstep.service.planner.stored_planner import StoredPlanner, UnstoredPlanner
from evenstep.service.registry.orders import Order, Orders
from evenstep.service.remote.channels import Answer
from evenstep.strategy import DGraph, LoadingPlan, to_json

CODE = {"code": 1.0}


def steered(planner: Planner, kind: str, value: Any = None, **options: Any) -> dict[str, Any]:
    given = {name: options.pop(name) for name in ("first", "dry_run") if name in options}
    options = {
        "by": "ana@login",
        "time": time.time(),
        "step": options.pop("at_step", -1),
        **options,
    }
    asked = Change(kind=kind, value=value, **options)
    told = planner.change(asked, token=planner.begin_change(), **{"first": 0, **given})
    assert told is not None
    return told


def drawn(plan: LoadingPlan | None) -> set[str]:
    assert plan is not None
    return {plan.samples.sources[number] for number in plan.samples.source}


def by_own_weights(graph: DGraph, mesh: Any, step: int) -> LoadingPlan:
    return graph.mix({"web": 1.0}).distribute("DP").balance("greedy").plan()


FOLLOWING = FeedbackSchedule(initial={"web": 1.0}, function=lambda last, signals: last)


@pytest.mark.parametrize(
    ("options", "later"),
    [
        ({"schedule": {"web": 1.0}}, "web"),
        ({"schedule": FOLLOWING}, "code"),  # which builds on the last weights
        ({"schedule": None, "strategy": by_own_weights}, "web"),
    ],
    ids=["schedule", "feedback", "strategy"],
)
def test_weights_count_from_their_step_on_over_any_others(
    options: dict[str, Any], later: str
) -> None:
    planner = Planner(planner_job_of(**options), METADATA)
    planner.plan(2)
    told = steered(planner, "weights", CODE)
    assert (told["step"], told["after"]) == (3, CODE)
    told = steered(planner, "weights", None, at_step=5)
    assert told["before"] == CODE
    plans = [planner.plan(step) for step in range(7)]
    assert [drawn(plan) for plan in plans] == [{"web"}] * 3 + [{"code"}] * 2 + [{later}] * 2
    assert [bool(plan and plan.notes) for plan in plans] == [step in (3, 5) for step in range(7)]
    assert "by ana@login" in plans[3].notes[0]  # type: ignore[union-attr]


def test_a_policy_draws_by_them_what_comes_after_its_windows() -> None:
    job = planner_job_of(
        policy=evenstep.Even(64, packed=True), strategy=None, max_tokens=None, schedule={"web": 1.0}
    )
    planner = Planner(job, METADATA)
    planner.plan(1)
    steered(planner, "weights", CODE)
    found = [drawn(planner.plan(step)) for step in range(2, 100)]
    assert found[0] == {"web"}
    assert found[-1] == {"code"}


def test_a_source_is_dropped_and_added_and_goes_on_where_it_was() -> None:
    planner = Planner(planner_job_of(schedule=None), METADATA)
    planner.plan(1)
    steered(planner, "drop", "code")
    planner.plan(4)
    steered(planner, "add", "code")
    plans = [planner.plan(step) for step in range(8)]
    assert [("code" in drawn(plan)) for plan in plans] == [True] * 2 + [False] * 3 + [True] * 3
    samples = [
        (source, position)
        for plan in plans
        if plan
        for source, position in zip(plan.samples.source.tolist(), plan.samples.position.tolist())
    ]
    code = sorted(position for source, position in samples if source == 1)
    assert code == list(range(len(code)))


def test_a_drained_job_ends_at_its_step_and_its_state_goes_on() -> None:
    job = planner_job_of(schedule=None)
    planner, reference = Planner(job, METADATA), Planner(job, METADATA)
    planner.plan(1)
    assert steered(planner, "end", at_step=4)["step"] == 4
    assert planner.plan(3) is not None
    assert planner.plan(4) is None
    assert planner.status()["ended_at"] == 4
    with pytest.raises(ConfigurationError, match="has ended at step 4"):
        steered(planner, "weights", CODE)
    again = Planner(job, METADATA)
    again.load_state_dict(planner.state_dict(4))
    assert to_json(again.plan(6)) == to_json(reference.plan(6))  # type: ignore[arg-type]


def test_a_state_from_before_a_change_has_it(tmp_path: Path) -> None:
    """As a trainer resumes from a checkpoint that is older, and in the store's order of steps."""
    job = planner_job_of(schedule=None, prefetch=0)
    planner = StoredPlanner(job, METADATA, RunStore(tmp_path, "run-0001"))
    planner.plan(3)
    checkpoint = planner.state_dict(2)
    steered(planner, "weights", CODE)
    steered(planner, "end", at_step=9)
    plans = [planner.plan(step) for step in range(8)]
    planner.close()
    for state in (planner.state_dict(3), es.stored_state(job, tmp_path, 2)):
        resumed = Planner(job, METADATA)
        resumed.load_state_dict(state)
        for step in range(state["step"], 8):
            assert to_json(resumed.plan(step)) == to_json(plans[step])  # type: ignore[arg-type]
        assert resumed.plan(9) is not None  # it is another run, which was not drained
    assert not checkpoint["changes"]


REFUSED: dict[str, tuple[str, Any, dict[str, Any], str]] = {
    "unknown source": ("weights", {"cod": 1}, {}, "'cod', which is not a source; .* web, code"),
    "negative": ("weights", {"code": -1}, {}, "code=-1.0 must be a finite number from 0"),
    "nothing": ("weights", {"code": 0}, {}, "sum to 0.0"),
    "past step": ("weights", CODE, {"at_step": 1}, "choose step 3 or a later one"),
    "on its way": ("weights", CODE, {"at_step": 4, "first": 6}, "choose step 6 or a later one"),
    "dropped": ("weights", {"books": 1}, {}, "'books', which was dropped; add that source again"),
    "dropped twice": ("drop", "books", {}, "'books' is dropped already"),
    "not dropped": ("add", "web", {}, "'web' is not dropped"),
    "new": ("add", "new", {}, "'new', which is not a source"),
    "two at once": (
        "weights",
        CODE,
        {"at_step": 7},
        "changed already: weights .* by bo; .* cancel",
    ),
    "nothing to cancel": ("cancel", None, {"at_step": 5}, "no change is to come at step 5"),
}


@pytest.mark.parametrize(("kind", "value", "options", "message"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_is_refused_and_changes_nothing(
    kind: str, value: Any, options: dict[str, Any], message: str
) -> None:
    planner = Planner(planner_job_of(schedule=None), METADATA)
    steered(planner, "drop", "books")
    planner.plan(2)
    steered(planner, "weights", {"web": 1}, at_step=7, by="bo")
    before = planner.status()["changes"]
    with pytest.raises(ConfigurationError, match=message):
        steered(planner, kind, value, **options)
    assert planner.status()["changes"] == before


def test_the_last_source_cannot_be_dropped() -> None:
    planner = Planner(planner_job_of(schedule={"web": 1.0}), METADATA)
    with pytest.raises(ConfigurationError, match=r"sum to 0.*positive weight"):
        steered(planner, "drop", "web")


def test_a_dry_run_and_a_cancelled_change_leave_the_job_as_it_was() -> None:
    job = planner_job_of(schedule=None)
    planner, reference = Planner(job, METADATA), Planner(job, METADATA)
    assert steered(planner, "weights", CODE, dry_run=True)["after"] == CODE
    steered(planner, "weights", CODE, at_step=3)
    steered(planner, "cancel", at_step=3)
    assert to_json(planner.plan(5)) == to_json(reference.plan(5))  # type: ignore[arg-type]


def test_a_planner_that_has_restarted_may_have_handed_out_more(tmp_path: Path) -> None:
    planner = Planner(planner_job_of(), METADATA)
    end = Change(kind="end", by="a", time=1.0)
    assert planner.change(end, token="another", first=0) is None
    told = steered(planner, "drop", "code", by="a", time=1.0)
    # The answer was lost, and the message comes again.
    drop = Change(kind="drop", value="code", by="a", time=1.0)
    assert planner.change(drop, token="another", first=9) == told
    with pytest.raises(ConfigurationError, match="pass store="):
        steered(UnstoredPlanner(planner_job_of(schedule=None), METADATA), "drop", "code")


@pytest.mark.backends("processes")
def test_all_ranks_of_a_running_job_change_at_one_step(
    start: Callable[..., Any], tmp_path: Path
) -> None:
    """Ordered from elsewhere; every batch is that of one process with the same change."""
    job = job_of(tmp_path, mesh={"DP": 2}, samples_per_step=6, max_tokens=400)
    events = tmp_path / "events.jsonl"
    with start(job, loaders=1, logs=es.LogOptions(events=events), store=tmp_path / "store") as own:
        clients = [own.client(rank) for rank in range(2)]
        taken = [steps_of(clients[0], 2), steps_of(clients[1], 1)]  # one is ahead
        own.state_dict(1)  # as trainers do that save
        with es.attach(own.address, own.name) as job_elsewhere:
            told = job_elsewhere.set_weights({"web": 1.0})
            assert 3 <= told["step"] <= 2 + job.memory.prefetch + 1
            job_elsewhere.use_loaders(2)
            assert len(own.status()["loaders"]) == 2
            _pause_and_resume(job_elsewhere, clients[1], taken[1])
            ended = job_elsewhere.drain(at_step=told["step"] + 3)
            with pytest.raises(ConfigurationError, match="is not paused"):
                job_elsewhere.resume()
            with pytest.raises(ConfigurationError, match="DP=0"):
                job_elsewhere.remesh({"DP": 0})
        for client, steps in zip(clients, taken):
            steps += steps_of(client)
        status = own.status()
    assert [len(steps) for steps in taken] == [ended["step"]] * 2
    assert [change["kind"] for change in status["planner"]["changes"]] == ["weights", "end"]
    written = events.read_text()
    assert all(word in written for word in ('"weights"', '"end"', "use_loaders", "pause", "@"))
    with es.start(job, backend="local") as service:
        service.set_weights({"web": 1.0}, at_step=told["step"])
        expected = [comparable(steps_of(service.client(rank), ended["step"])) for rank in range(2)]
    assert list(map(comparable, taken)) == expected
    state = es.stored_state(job, tmp_path / "store", 1)
    resumed = in_one_process(job, ended["step"] - 1, state=state)
    assert resumed == [steps[1:] for steps in expected]


def _pause_and_resume(job: Any, client: Any, taken: list[Any]) -> None:
    job.pause()
    with pytest.raises(ConfigurationError, match=r"paused since .* by .*@"):
        job.pause()
    assert "is paused" in job.status()["paused"]
    more: list[Any] = []
    thread = threading.Thread(target=lambda: more.extend(steps_of(client, 4)))
    thread.start()
    thread.join(1.5)
    assert thread.is_alive()  # it has what was begun, and waits for the rest
    job.resume()
    thread.join(60)
    assert not thread.is_alive()
    taken += more


def test_an_order_is_handed_out_until_its_answer_comes() -> None:
    async def check() -> None:
        orders = Orders()
        done = asyncio.ensure_future(orders.carried_out(Order("a", "pause", {}, "ana")))
        lost = await orders.next("", None)  # to a connection that was lost
        assert await asyncio.wait_for(orders.next("", None), 30) == lost
        waiting = asyncio.ensure_future(orders.next("a", Answer("paused")))
        assert await asyncio.wait_for(done, 30) == "paused"
        await asyncio.sleep(0)
        assert not waiting.done()
        waiting.cancel()

    asyncio.run(check())


def test_an_order_that_nobody_carries_out_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from evenstep.errors import EvenstepError
    from evenstep.service.backends import changing_job
    from evenstep.service.registry import orders

    monkeypatch.setattr(orders, "_ASKED_WITHIN", 0.3)
    monkeypatch.setattr(changing_job.ChangingJob, "_begin_orders", lambda self: None)
    job = new_job(sources=sources(tmp_path)[:1], mesh={"DP": 1}, policy=evenstep.Even(64))
    name = f"orders-{os.getpid()}"
    with (
        es.start(job, backend="processes", name=name) as own,
        es.attach(own.address, name) as elsewhere,
        pytest.raises(EvenstepError, match=r"has not answered for 0 s.*nothing was changed"),
    ):
        elsewhere.pause()
