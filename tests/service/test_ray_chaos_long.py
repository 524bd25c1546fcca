"""Four trainers on a cluster of two nodes get the same while processes and a node are killed and
stopped, and loaders take too much memory. Prints how long the slowest rank stood still after each::

    EVENSTEP_SOAK_SECONDS=1800 pytest -m soak -s tests/service/test_ray_chaos_long.py
"""

from __future__ import annotations

import os
import random
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from ray_cluster import FarNode, two_nodes
from service_world import job_of, steps_of

pytest.importorskip("ray", reason="ray is not installed")

from ray_chaos import STEP_SECONDS, run

import evenstep.service as es

pytestmark = pytest.mark.soak

SOAK_SECONDS = float(os.environ.get("EVENSTEP_SOAK_SECONDS", 600))
PROCESSES = ("loader", "two loaders", "worker", "standby", "constructor", "planner")
# Ray takes a quarter of a minute to miss a node.
KINDS = (*PROCESSES * 2, "registry", "trainer", "node")
FAR = {"label_selector": {"place": "far"}}
PLACES = {"loaders": [{}, FAR], "constructors": [{}, FAR]}


@pytest.fixture
def far() -> Iterator[FarNode]:
    with two_nodes() as node:
        yield node


@pytest.mark.timeout(2 * SOAK_SECONDS + 600)
@pytest.mark.parametrize("standbys", [0, 1])
@pytest.mark.parametrize("prefetch", [2, 4])
def test_trainers_get_the_same_whatever_happens(
    prefetch: int, standbys: int, far: FarNode, tmp_path: Path
) -> None:
    draw = random.Random(prefetch)

    def events() -> Iterator[tuple[str, str, float]]:
        end = time.monotonic() + SOAK_SECONDS / 4
        while time.monotonic() < end:
            kind = draw.choice(KINDS)
            yield kind, draw.choice(["killed", "killed", "stopped"]), draw.uniform(4, 10)

    chaos = run(
        tmp_path,
        prefetch=prefetch,
        standbys=standbys,
        steps=int(SOAK_SECONDS / 4 / STEP_SECONDS) + 20,
        events=events(),
        far=far,
        alone=0.8,
        ray=es.RayOptions(placement=PLACES),
    )
    for what, stalls in sorted(chaos.stalls().items()):
        middle, longest = statistics.median(stalls), max(stalls)
        print(
            f"prefetch {prefetch}, standbys {standbys}: {what}: {len(stalls)} times, "
            f"{middle:.1f} s, {longest:.1f} s"
        )
    assert len({what for what, *_ in chaos.happened}) > 3


@pytest.mark.timeout(600)
@pytest.mark.parametrize("standbys", [0, 1])
def test_what_a_lost_node_held_goes_on_where_there_is_room(
    standbys: int, far: FarNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    rather = {"scheduling_strategy": NodeAffinitySchedulingStrategy(far.node_id, soft=True)}
    monkeypatch.setattr(far, "follow", lambda: None)
    run(
        tmp_path,
        prefetch=2,
        standbys=standbys,
        steps=80,
        events=iter([("node", "killed", 2.0)]),
        far=far,
        ray=es.RayOptions(
            cpus=0.25, placement={"loaders": [{}, rather], "constructors": [{}, rather]}
        ),
    )


def test_loaders_and_constructors_are_on_the_nodes_that_are_asked_for(
    far: FarNode, tmp_path: Path
) -> None:
    import ray

    placement = {
        "loaders": {**FAR, "num_cpus": 0.5, "memory": 1 << 20},
        "constructors": [FAR, {"label_selector": {"place": "near"}}],
        "planner": {"resources": {"far": 1}},
    }
    options = es.RayOptions(cpus=0.25, placement=placement)
    with es.start(job_of(tmp_path), name="placed", loaders=2, ray=options) as service:
        status, pids = service.status(), set(far.pids)
        roles = [*status["loaders"], *status["constructors"], status["planner"]]
        is_far = [role["process"]["process"] in pids for role in roles]
        assert is_far == [True, True, True, False, True]
        free = ray.available_resources()
        assert free["far"] == 1
        assert free["CPU"] == 8 - 2 * 0.5 - 3 * 0.25
        assert len(steps_of(service.client(0), 2)) == 2
