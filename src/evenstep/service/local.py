"""All roles in one process: for tests, for laptops, and to look at a job before it runs on a
cluster. Nothing runs ahead, as there is nobody to do it, so every step is made when it is asked
for; it is the same as with any other backend."""

from __future__ import annotations

import os
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from evenstep.errors import ConfigurationError
from evenstep.plan.argument_checks import check_at_least
from evenstep.service.client import RankClient
from evenstep.service.handles import LocalHandle
from evenstep.service.job import Job
from evenstep.service.loader_pool import LoaderPool
from evenstep.service.planner import Planner
from evenstep.service.source_layout import STRIPE, SourceLayout
from evenstep.service.source_loader import SourceLoader
from evenstep.strategy import LoadingPlan
from evenstep.strategy.mesh import AXES

__all__ = ["LocalService", "groups_of", "rank_of"]


class LocalService:
    """A running job. Made by `evenstep.service.start`; a context manager."""

    def __init__(
        self,
        job: Job,
        *,
        loaders: int = 1,
        constructors: int | None = None,
        state: Mapping[str, Any] | None = None,
        plan_log: str | os.PathLike[str] | None = None,
        stripe: int = STRIPE,
    ) -> None:
        """
        Args:
            loaders: Source Loaders that sources are dealt to, or that share one where there are
                more of them.
            constructors: Data Constructors that data-parallel groups are dealt to; None is one for
                each.
            state: of `state_dict`, to go on from.
            plan_log: a file that plans are written to, a line of JSON each.
            stripe: positions in a row that one loader has, of a source that several share.

        Raises:
            ConfigurationError: a source cannot be opened, or more constructors than groups.
            MismatchError: the state is of another job.
        """
        self.job = job
        self._closed = False
        from evenstep.service.data_constructor import DataConstructor  # which needs torch

        layout = SourceLayout.deal(job.names, loaders, stripe=stripe)
        self._loaders: list[SourceLoader] = []
        try:
            for number, shares in enumerate(layout.shares):
                self._loaders.append(SourceLoader(job.for_loader(shares, number)))
            handles = [LocalHandle(loader) for loader in self._loaders]
            metadata = LoaderPool(layout, handles, columns=job.columns)
            self._planner = Planner(job, metadata, plan_log=plan_log)
            if state is not None:
                self._planner.load_state_dict(state)
            self._first = self._planner.step
            planner = LocalHandle(self._planner)
            self._constructors = [
                DataConstructor(job, groups, planner, handles, layout)
                for groups in groups_of(job, constructors)
            ]
        except BaseException:
            self.close()
            raise
        self._clients: list[RankClient] = []

    def client(self, rank: int | None = None, **place: int) -> RankClient:
        """The client of a rank, or of its coordinates: ``client(PP=0, DP=1, CP=0, TP=0)``, those
        left out 0. Another call gives another client of it, that begins with the first step.

        Raises:
            ConfigurationError: there is no such rank, or the service is closed.
        """
        self._check_open()
        rank = rank_of(self.job, rank, place)
        having = next(c for c in self._constructors if rank in c.clients)
        client = RankClient(
            self.job, rank, LocalHandle(having), LocalHandle(self._planner), step=self._first
        )
        self._clients.append(client)
        return client

    def plan(self, step: int) -> LoadingPlan | None:
        """The plan of a step; None where the mixture has ended before it."""
        self._check_open()
        return self._planner.plan(step)

    def state_dict(self, step: int | None = None) -> dict[str, Any]:
        """From which a service goes on, on the same mesh or on another: JSON-able.

        Args:
            step: that comes next; None is the one that comes next in all clients.

        Raises:
            ConfigurationError: clients have taken different numbers of steps, or the state before
                the step is not kept.
        """
        self._check_open()
        if step is None:
            reached = {c.step for c in self._clients if c.step > self._first} or {self._first}
            if len(reached) > 1:
                raise ConfigurationError(
                    f"clients have come to different steps, from {min(reached)} to {max(reached)}; "
                    "save where all have taken the same, or name the step"
                )
            (step,) = reached
        return self._planner.state_dict(step)

    def status(self) -> dict[str, Any]:
        """JSON-able: what each role is at."""
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
        """Ends all roles. Harmless the second time."""
        self._closed = True
        for client in getattr(self, "_clients", []):
            client.close()
        for loader in self._loaders:
            loader.close()

    def __enter__(self) -> LocalService:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise ConfigurationError("the service is closed; start the job again")


def groups_of(job: Job, constructors: int | None) -> list[list[int]]:
    """[constructors] the data-parallel groups of each, neighbours together.

    Raises:
        ConfigurationError: no constructor, or more than groups.
    """
    groups = job.tree.sizes["DP"]
    count = groups if constructors is None else constructors
    check_at_least(1, constructors=count)
    if count > groups:
        raise ConfigurationError(
            f"constructors={count}, and there are {groups} data-parallel groups to serve; choose "
            f"at most {groups}"
        )
    bounds = [groups * number // count for number in range(count + 1)]
    return [list(range(begin, end)) for begin, end in pairwise(bounds)]


def rank_of(job: Job, rank: int | None, place: Mapping[str, int]) -> int:
    """A rank as it is, or the one at coordinates.

    Raises:
        ConfigurationError: there is none, or both are given.
    """
    if rank is None:
        return job.tree.rank(place)
    if place:
        raise ConfigurationError(
            f"rank={rank} and {', '.join(f'{a}={place[a]}' for a in AXES if a in place)} are "
            "given; give one of them"
        )
    job.tree.place(rank)
    return rank
