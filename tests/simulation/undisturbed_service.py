"""The steps of a service in one process, which are those of one on a cluster that is disturbed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import simulated_processes
from histories import Choices
from service_settings import MESHES, ServiceSetup, job_of, loss_of
from simulated_actors import Cluster
from simulated_world import World

import evenstep.service as es
from evenstep.service.backends.local import LocalService


@dataclass(frozen=True)
class Taken:
    """A step as one rank gets it."""

    step: int
    bucket: int
    batches: str
    positions: tuple[tuple[int, int], ...]
    """Source and position of each sample."""
    about: str

    @classmethod
    def of(cls, micro_batches: list[Any], step: es.ServiceStep) -> Taken:
        about = step.loss_scales, step.sample_ids, dict(step.weights), step.carried, step.fetched_by
        positions = (
            zip(table.source.tolist(), table.position.tolist(), strict=True)
            for table in step.tables
        )
        return cls(
            step.step,
            step.rank,
            repr(plain(micro_batches)),
            tuple(pair for each in positions for pair in each),
            repr(about),
        )


def plain(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, Mapping):
        return {name: plain(each) for name, each in value.items() if name not in _OWN}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    return value


_OWN = ("sharding", "slow", "error")  # fields that do not decide what is trained on


@dataclass
class Undisturbed:
    """What a service in one process gives, from a state on."""

    steps: dict[tuple[int, int], Taken] = field(default_factory=dict)
    """By rank and step."""
    states: dict[int, str] = field(default_factory=dict)
    end: int = 0
    drawn: Mapping[str, int] = field(default_factory=dict)
    left_over: int = 0

    @property
    def taking(self) -> list[int]:
        return sorted({rank for rank, _ in self.steps})


def undisturbed(
    setup: ServiceSetup, mesh: str, state: str | None, started_on: str | None = None
) -> Undisturbed:
    """
    Args:
        started_on: the mesh of the job before it was changed to `mesh`.
    """
    job = job_of(setup, started_on or mesh)
    if started_on is not None:
        job = job.on(MESHES[mesh])
    world, found = World(Choices(), seconds=1e6), Undisturbed()
    world.network = Cluster(world, late=False, repeats=False)
    process = simulated_processes.start_process(
        world, "local", lambda: _run_locally(setup, job, state, found), None
    )
    violation = world.run()
    assert violation is None, violation
    assert process.exit_code == 0, process.error
    return found


def _run_locally(setup: ServiceSetup, job: es.Job, state: str | None, found: Undisturbed) -> None:
    loaded = None if state is None else json.loads(state)
    with LocalService(job, state=loaded) as service:
        clients = [service.client(rank) for rank in job.tree.ranks.ravel().tolist()]
        clients = [client for client in clients if client.fetches]
        for number in _numbers(clients):
            found.states[number] = json.dumps(service.state_dict(number), sort_keys=True)
            for client in clients:
                taken = next(client, None)
                if taken is not None:
                    found.steps[client.rank, number] = Taken.of(*taken)
                    if setup.follows:
                        client.report(loss_by_source=loss_of(setup, number, client.rank))
        status = service.status()["planner"]
        found.end, found.drawn = status["step"], status["drawn"]
        found.left_over = status["left_over"]
        # Nobody fetches anything of a job that goes on at its end.
        found.states[found.end] = json.dumps(service.state_dict(found.end), sort_keys=True)


def _numbers(clients: list[Any]) -> Iterator[int]:
    """The number of each step, until the clients have ended."""
    while clients:
        before = clients[0].step
        yield before
        if clients[0].step == before:
            return
