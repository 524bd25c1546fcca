"""Actors are made on the nodes that the job says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from ray_cluster import PATIENCE
from service_world import comparable, job_of, steps_of

pytest.importorskip("ray", reason="ray is not installed")

import evenstep.service as es
from evenstep.errors import ConfigurationError
from evenstep.service.backends.ray import RayService
from evenstep.service.backends.ray.actor_options import ActorPlacement


@pytest.fixture(scope="module")
def nodes() -> Iterator[None]:
    """A head that lends nothing, and two nodes with labels."""
    import ray
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    for name in ("a", "b"):
        cluster.add_node(
            num_cpus=4,
            labels={"host": name},
            resources={f"on-{name}": 2},
            object_store_memory=100_000_000,
        )
    ray.init(cluster.address, log_to_driver=False, logging_level="ERROR")
    yield
    ray.shutdown()
    cluster.shutdown()


def node_of(role: Any) -> str:
    """The label of the node that an actor is on, as its raylet was told."""
    told = " ".join(psutil.Process(role["process"]["process"]).parent().cmdline())
    return next(name for name in ("a", "b") if f'"host": "{name}"' in told)


@pytest.mark.soak
def test_loaders_and_constructors_are_on_the_nodes_that_are_asked_for(
    nodes: None, tmp_path: Path
) -> None:
    import ray

    placement: Any = {
        "loaders": {"label_selector": {"host": "b"}, "num_cpus": 0.5, "memory": 1 << 20},
        "constructors": [{"label_selector": {"host": name}} for name in ("b", "a")],
        "planner": {"resources": {"on-a": 1}},
    }
    job = job_of(tmp_path)
    with RayService(
        job,
        name="placed",
        loaders=2,
        ray=es.RayOptions(cpus=0.25, placement=placement),
        faults=es.ServiceFaults(patience=PATIENCE),
    ) as service:
        status = service.status()
        assert [node_of(role) for role in status["loaders"]] == ["b", "b"]
        assert [node_of(role) for role in status["constructors"]] == ["b", "a"]
        assert node_of(status["planner"]) == "a"
        free = ray.available_resources()
        assert (free["on-a"], free["on-b"]) == (1, 2)
        assert free["CPU"] == 8 - 2 * 0.5 - 3 * 0.25
        taken = comparable(steps_of(service.client(0), 2))
    assert len(taken) == 2


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"trainers": {}}, "placement has 'trainers'"),
        ({"constructors": [{}]}, r"placement\['constructors'\] has 1 entries for 2 actors"),
    ],
)
def test_a_placement_that_cannot_be_had_is_refused(given: Any, error: str) -> None:
    with pytest.raises(ConfigurationError, match=error):
        ActorPlacement(given, loaders=3, constructors=2)
