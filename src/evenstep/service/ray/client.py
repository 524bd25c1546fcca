"""Clients of a service on Ray: in the process that started it, and in trainers' own."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, cast

from evenstep.errors import ConfigurationError
from evenstep.service.client import RankClient
from evenstep.service.job import Job
from evenstep.service.ray.discovery import connect, find
from evenstep.service.ray.handles import Answer
from evenstep.service.ray.import_ray import import_ray
from evenstep.service.ray.registry import JobInfo
from evenstep.service.service_step import ServiceStep

__all__ = ["Client", "RayClient"]


class RayClient(RankClient):
    """See `RankClient`. Where any actor of the service dies, the next step raises an error naming
    it, whatever was prefetched."""

    def __init__(self, about: JobInfo, desk: Any, rank: int, *, step: int | None = None) -> None:
        """
        Args:
            desk: Ray's handle of it.
            step: that comes first; None is the service's first.
        """
        self._desk = desk
        self._stages: Mapping[str, float] = {}
        alarm = desk.failed.remote()
        super().__init__(
            cast(Job, about),
            rank,
            about.constructor(rank).using(alarm=alarm, told=self._was_told),
            about.planner.using(alarm=alarm),
            step=about.step if step is None else step,
        )

    def __next__(self) -> tuple[list[Any], ServiceStep]:
        try:
            micro_batches, step = super().__next__()
        except StopIteration:
            self._desk.ended.remote(self.rank)
            raise
        told = {
            "imbalance": step.imbalance,
            "imbalance_before": step.imbalance_before,
            "tokens": sum(step.tokens.values()),
        }
        self._desk.took.remote(self.rank, step.step, step.wait_seconds, self._stages, told)
        return micro_batches, step

    def _was_told(self, answer: Answer) -> None:
        self._stages = answer.stages


class Client(RayClient):
    """The client of a rank, in a trainer's process: ``evenstep.service.Client``."""

    def __init__(
        self,
        address: str | None = "auto",
        job_name: str = "job",
        rank: int | None = None,
        *,
        step: int | None = None,
        patience: float = 60.0,
    ) -> None:
        """
        Args:
            address: of the service's cluster, which it prints; "auto" for one on this machine.
            job_name: what the job was started as.
            rank: None is that of the environment variable RANK, as torchrun sets it.
            step: that comes first; None is the service's first.
            patience: seconds to wait for the service to be started.

        Raises:
            ConfigurationError: no cluster, no such job, or no such rank.
            ImportError: Ray is not installed.
        """
        if rank is None:
            rank = _rank()
        self._connected = connect(address or "auto")
        try:
            about, desk = find(job_name, patience=patience)
            super().__init__(about, desk, rank, step=step)
        except BaseException:
            self._leave()
            raise

    def close(self) -> None:
        super().close()
        self._leave()

    def _leave(self) -> None:
        if self._connected:
            self._connected = False
            import_ray().shutdown()


def _rank() -> int:
    given = os.environ.get("RANK", "")
    if not given.isdecimal():
        raise ConfigurationError(
            f"rank is not given, and RANK={given!r} of the environment is none; give rank=, or "
            "start the trainer with torchrun"
        )
    return int(given)
