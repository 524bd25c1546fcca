"""The mesh of a running job changes: samples not yet trained on come first, each once."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ray_cluster import kill
from service_world import comparable, in_one_process, job_of, steps_of, striped
from test_stored_planner import NAMES, lengths
from test_stored_planner import job_of as planner_job_of

import evenstep.service as es
from evenstep.errors import ConfigurationError, MeshChangedError
from evenstep.service.planner.planner import Planner
from evenstep.strategy import to_json

MESHES = st.builds(
    lambda dp, cp, tp: {"DP": dp, "CP": cp, "TP": tp},
    st.integers(1, 4),
    st.integers(1, 2),
    st.integers(1, 2),
)


def samples_of(table: Any) -> Iterator[tuple[int, int]]:
    return zip(table.source.tolist(), table.position.tolist())


def trained_by(steps: Any) -> list[Any]:
    return [each for _, about in steps for t in about.tables for each in samples_of(t)]


@given(st.lists(st.tuples(MESHES, st.integers(0, 4), st.integers(0, 3)), max_size=8), st.booleans())
def test_any_meshes_at_any_steps_train_on_each_sample_once(
    changes: list[tuple[dict[str, int], int, int]], follows: bool
) -> None:
    """To the end of an epoch; and every plan is that of a job started anew from the state."""
    options: dict[str, Any] = {} if follows else {"schedule": None}
    options.update(stop="all_exhausted", samples_per_step=None, max_tokens=300, plans_kept=64)
    job = planner_job_of(micro_batches=2, **options)
    epoch = lengths(60)
    planner, step, trained = Planner(job, epoch), 0, []
    for mesh, steps, planned_ahead in [*changes, ({"DP": 1}, 99, 0)]:
        plans = {}
        for _ in range(steps):
            plan = planner.plan(step + planned_ahead) and planner.plan(step)
            plan = planner.plan(step)
            if plan is None:
                break
            plans[step] = plan
            placed = plan.samples[plan.assignment.placed]
            trained += list(samples_of(placed))
            planner.report(step, 0, {"loss": {NAMES[step % 3]: 1.0}})
            step += 1
        state, job = planner.state_dict(step), job.on(mesh)
        assert {**planner.remesh(mesh, step), "job": state["job"]} == state
        fresh = Planner(job, epoch)
        fresh.load_state_dict(state)
        for ahead in range(2):
            again, anew = planner.plan(step + ahead), fresh.plan(step + ahead)
            assert (again and to_json(again)) == (anew and to_json(anew))
            assert again is None or again.tree == job.tree
        for before, plan in plans.items():  # for clients that are behind
            assert to_json(planner.plan(before)) == to_json(plan)  # type: ignore[arg-type]
    while (plan := planner.plan(step)) is not None:
        trained += list(samples_of(plan.samples[plan.assignment.placed]))
        step += 1
    left = planner.status()["left_over"]
    assert len(trained) == len(set(trained)) == 180 - left
    assert left <= 2


def test_a_job_that_draws_what_its_mesh_holds_does_so_on_another() -> None:
    job = planner_job_of(samples_per_step=None)
    assert job.draws.tokens_per_step == 460  # nine tenths of 2 x 256
    assert job.on({"DP": 4, "CP": 2}).draws.tokens_per_step == 921
    assert job.on({"DP": 4}).on({"DP": 2}).draws.tokens_per_step == 460
    fixed = planner_job_of(samples_per_step=None, tokens_per_step=300)
    assert fixed.on({"DP": 4}).draws.tokens_per_step == 300


@pytest.mark.parametrize(
    ("backend", "meshes"),
    [
        ("processes", [{"DP": 3}, {"DP": 1, "CP": 2}]),
        pytest.param("ray", [{"DP": 1}], marks=pytest.mark.soak),
        pytest.param("ray", [{"DP": 3}, {"DP": 1, "CP": 2}], marks=pytest.mark.soak),
    ],
)
def test_ranks_join_and_leave_while_all_roles_run(
    backend: str, meshes: list[dict[str, int]], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """As in one process, but that clients have requested steps: these they get. On Ray all that
    hold steps die."""
    pytest.importorskip("zmq", reason="pyzmq is not installed")
    if backend == "ray":
        request.getfixturevalue("ray_of_file")
    job = job_of(
        tmp_path, mesh={"DP": 2, "CP": 2}, stop="all_exhausted", samples_per_step=6, max_tokens=400
    )
    store = tmp_path / "store"
    seen: list[Any] = []
    name = f"remesh-{os.getpid()}-{len(meshes)}"
    with es.start(
        job, backend=backend, name=name, loaders=striped(job, 2, 4), store=store
    ) as service:
        for mesh in meshes:
            old = [service.client(rank) for rank in range(len(service.job.tree))]
            taken = [steps_of(client, 1) for client in old]
            former = service._info.constructors[0][1]
            service.remesh(mesh)
            info = service._info
            if backend == "ray":
                kill(info.registry, info.planner, former, info.constructors[0][1])
            begin = info.step
            for client, steps in zip(old, taken):
                while client.step < begin:
                    steps += steps_of(client, 1)
                with pytest.raises(MeshChangedError, match="make a new client"):
                    next(client)
                seen += trained_by(steps) if client.place.CP == 0 else []
            state = service.state_dict(begin)
            expected = in_one_process(service.job, 2, ranks=range(mesh["DP"]), state=state)
            got = [steps_of(service.client(rank), 2) for rank in range(mesh["DP"])]
            assert list(map(comparable, got)) == expected
            known = es.stored_state(service.job, store, begin)
            assert known["mixture"] == state["mixture"]
        # A rank is lost: the others stand at the step that they were at.
        seen += trained_by(got[0])
        held, at = list(service._clients), begin + 2
        with pytest.raises(ConfigurationError, match=f"comes to step {at} next"):
            service.remesh({"DP": 2}, at_step=begin)
        for mesh in ({"DP": 2}, {"DP": 1}):
            service.remesh(mesh, at_step=at)
            assert service.client(0).step == at
            for client in held:  # they have requested that step and more
                with pytest.raises(MeshChangedError, match=f"changed at step {at}"):
                    next(client)
        seen += trained_by(steps_of(service.client(0)))
        status = service.status()
    assert len(seen) == len(set(seen)) == 155 - status["planner"]["left_over"]
    assert status["failed"] is None
