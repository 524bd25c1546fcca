"""Clients of a service on Ray: in the process that started it, and in trainers' processes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from evenstep.errors import ConfigurationError, EvenstepError
from evenstep.service.client import RankClient
from evenstep.service.ray.discovery import connect, find
from evenstep.service.ray.handles import Answer, RayReply, import_ray
from evenstep.service.ray.open_requests import Request
from evenstep.service.ray.registry import JobInfo
from evenstep.service.ray.wait_warnings import WaitWarnings
from evenstep.service.service_step import ServiceStep


class RayClient(RankClient):
    """A `RankClient` that watches the service: when any actor dies, the next step raises an error
    naming the actor, whatever was prefetched."""

    def __init__(self, job: JobInfo, registry: Any, rank: int, *, step: int | None = None) -> None:
        """
        Args:
            registry: Ray's handle of it.
            step: the first step; None is the service's first.
        """
        self._registry = registry
        self._stages: Mapping[str, float] = {}
        constructor = job.constructor(rank)  # refuses ranks that do not exist
        warnings = WaitWarnings(job.registry, f"rank {rank}")
        watched: dict[str, Any] = {
            "alarm": registry.failed.remote(),
            "on_wait": warnings,
            "warn_after": job.warn_after,
        }
        self._meeting_place = job.registry.using(**watched)
        self._ask_registry("begins", registry.begins.remote(rank), None)
        super().__init__(
            job.tree,
            rank,
            constructor.using(**watched, on_answer=self._keep_stages),
            job.planner.using(**watched),
            prefetch=job.prefetch,
            step=job.step if step is None else step,
        )

    def __next__(self) -> tuple[list[Any], ServiceStep]:
        try:
            micro_batches, step = super().__next__()
        except StopIteration:
            self._registry.record_end.remote(self.rank)
            raise
        except EvenstepError as error:
            self._registry.record_failure.remote(self.rank, error)
            raise
        figures = {
            "imbalance": step.imbalance,
            "imbalance_before": step.imbalance_before,
            "tokens": sum(step.tokens.values()),
        }
        waited = step.wait_seconds
        self._registry.record_step.remote(self.rank, step.step, waited, self._stages, figures)
        return micro_batches, step

    def common_state(self) -> Mapping[str, Any]:
        if self._last is None and not self.fetches:
            raise ConfigurationError(
                f"rank {self.rank} takes no steps, and has nothing to save; call common_state() "
                "where client.fetches is True"
            )
        sent = self._registry.common_state.remote(self.rank, self.step)
        state: Mapping[str, Any] = self._ask_registry("common_state", sent, self.step)
        return state

    def _ask_registry(self, message: str, sent: Any, step: int | None) -> Any:
        return RayReply(self._meeting_place, sent, Request(message, step), single=True).result()

    def _keep_stages(self, answer: Answer) -> None:
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
            job_name: the name that the job was started with.
            rank: None is that of the environment variable RANK, as torchrun sets it.
            step: the first step; None is the service's first.
            patience: seconds to wait for the service to be started.

        Raises:
            ConfigurationError: no cluster, no such job, or no such rank.
            ImportError: Ray is not installed.
        """
        if rank is None:
            rank = _rank_of_environment()
        self._connected = connect(address or "auto")
        try:
            job, registry = find(job_name, patience=patience)
            super().__init__(job, registry, rank, step=step)
        except BaseException:
            self._disconnect()
            raise

    def close(self) -> None:
        super().close()
        self._disconnect()

    def _disconnect(self) -> None:
        if self._connected:
            self._connected = False
            import_ray().shutdown()


def _rank_of_environment() -> int:
    given = os.environ.get("RANK", "")
    if not given.isdecimal() or len(given) > 9:
        raise ConfigurationError(
            f"rank is not given, and the environment variable RANK={given!r} is not a rank; give "
            "rank=, or start the trainer with torchrun"
        )
    return int(given)
