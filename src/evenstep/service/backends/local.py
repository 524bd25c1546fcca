"""`LocalService`: all roles in one process, for tests, for laptops, and to try out a job before it
runs on a cluster. Nothing is prepared in the background, so every step is made when it is asked
for; its plans and batches are those of any other backend."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from evenstep.service.backends.steering import Steering
from evenstep.service.client.rank_client import RankClient
from evenstep.service.job.job import Job
from evenstep.service.job.roles import (
    Loaders,
    check_not_taken,
    common_step,
    groups_of,
    layout_of,
    rank_of,
)
from evenstep.service.messages import LocalHandle
from evenstep.service.planner.changes import Change
from evenstep.service.planner.seen import begin_run
from evenstep.service.planner.store.run_store import new_run
from evenstep.service.planner.stored_planner import planner_of
from evenstep.service.source_loader.source_loader import SourceLoader
from evenstep.service.start_options import LogOptions
from evenstep.strategy import LoadingPlan

if TYPE_CHECKING:
    from evenstep.service.constructor.data_constructor import DataConstructor


class LocalService(Steering):
    """A running job. Made by `evenstep.service.start`; a context manager."""

    def __init__(
        self,
        job: Job,
        *,
        loaders: Loaders = 1,
        constructors: int | None = None,
        state: Mapping[str, Any] | None = None,
        store: str | os.PathLike[str] | None = None,
        logs: LogOptions | None = None,
    ) -> None:
        """See `start`.

        Raises:
            ConfigurationError: a source cannot be opened.
            MismatchError: the state is of another job.
        """
        logs = logs or LogOptions()
        self.job = job
        layout = layout_of(job, loaders)
        self._loaders: list[SourceLoader] = []
        self._clients: list[RankClient] = []
        try:
            for part in job.loader_jobs(layout):
                self._loaders.append(SourceLoader(part))
            handles = [LocalHandle(loader) for loader in self._loaders]
            seen = begin_run(logs.seen, job.names, state)
            self._planner = planner_of(job, layout, handles, state, seen, new_run(store))
            self._first = self._planner.step
            self._layout, self._constructor_count = layout, constructors
            self._constructors = self._made_constructors(job)
        except BaseException:
            self.close()
            raise

    def client(self, rank: int | None = None, **place: int) -> RankClient:
        """The client of a rank, given by its number or its coordinates, such as
        ``client(PP=0, DP=1, CP=0, TP=0)``; coordinates left out are 0. Each call makes a new
        client, which begins with the service's first step.

        Raises:
            ConfigurationError: there is no such rank, or the service is closed.
        """
        self._check_open()
        rank = rank_of(self.job, rank, place)
        constructor = next(c for c in self._constructors if rank in c.clients)
        client = RankClient(
            self.job.tree,
            rank,
            LocalHandle(constructor),
            LocalHandle(self._planner),
            prefetch=0,  # as nothing is prepared in the background
            step=self._first,
        )
        self._clients.append(client)
        return client

    def remesh(self, mesh: Any, at_step: int | None = None) -> None:
        """Changes the mesh at a step, without a restart: `client` then returns clients of the new
        mesh, which begin there. Clients of the old mesh get the steps before it, and then
        `MeshChangedError`. Samples that were drawn for later steps come first, each once.

        Args:
            mesh: see `Job`; or ``service.job.tree`` with nodes added, removed or replaced.
            at_step: None is the step that comes next in the client that is furthest.

        Raises:
            ConfigurationError: a client has taken the step already, or the job does not go with the
                mesh.
            EvenstepError: a step before it cannot be planned.
        """
        self._check_open()
        reached = max((c.step for c in self._clients), default=self._first)
        step = reached if at_step is None else at_step
        check_not_taken(step, reached)
        job = self.job.on(mesh)
        made = self._made_constructors(job)
        step = self._planner.remesh(job.tree, step)["step"]  # not after the end of the mixture
        for constructor in self._constructors:
            constructor.end_at(step)
        for loader in self._loaders:
            loader.drop_from(step)
        self.job, self._constructors, self._first = job, made, step

    def _change(self, asked: Change, dry_run: bool) -> dict[str, Any]:
        self._check_open()
        token = self._planner.begin_change()
        told = self._planner.change(asked, token=token, first=0, dry_run=dry_run)
        assert told is not None
        return told

    def _made_constructors(self, job: Job) -> list[DataConstructor]:
        from evenstep.service.constructor.data_constructor import (
            DataConstructor,  # which needs torch
        )

        count = self._constructor_count
        if count is not None and job is not self.job:
            count = min(count, job.tree.sizes["DP"])
        handles, planner = list(map(LocalHandle, self._loaders)), LocalHandle(self._planner)
        return [
            DataConstructor(job, groups, planner, handles, self._layout)
            for groups in groups_of(job, count)
        ]

    def plan(self, step: int) -> LoadingPlan | None:
        """The plan of a step; None if the mixture has ended before it."""
        self._check_open()
        return self._planner.plan(step)

    def state_dict(self, step: int | None = None) -> dict[str, Any]:
        """The state to resume from, on the same mesh or another one: JSON-able.

        Args:
            step: the step to resume at; None is the one that comes next in all clients.

        Raises:
            ConfigurationError: clients have taken different numbers of steps, or the state before
                the step is not kept.
        """
        self._check_open()
        if step is None:
            step = common_step(self._first, {c.rank: c.step for c in self._clients})
        return self._planner.state_dict(step)

    def status(self) -> dict[str, Any]:
        """JSON-able: the state of each role."""
        self._check_open()
        return {
            "backend": "local",
            "job": self.job.fingerprint,
            "planner": self._planner.status(),
            "loaders": [loader.status() for loader in self._loaders],
            "constructors": [constructor.status() for constructor in self._constructors],
            "clients": [
                {"rank": c.rank, "step": c.step, "wait_seconds": c.wait_seconds}
                for c in self._clients
            ],
        }

    def close(self) -> None:
        """Ends all roles. Idempotent."""
        super().close()
        for client in self._clients:
            client.close()
        if hasattr(self, "_planner"):
            self._planner.close()
        for loader in self._loaders:
            loader.close()
