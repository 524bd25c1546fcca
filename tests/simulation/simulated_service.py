"""A service on the simulated machine, and the trainers that it feeds."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import simulated_processes
import simulated_threading
from histories import Choices
from loader_settings import spend
from processes import Fault, Process, inject_faults
from service_settings import MESHES, ServiceRun, ServiceSetup, job_of, loss_of
from simulated_actors import Cluster
from simulated_world import World
from undisturbed_service import Taken

import evenstep.service as es
from evenstep.errors import EvenstepError, MeshChangedError
from evenstep.service.backends.ray.ray_service import RayService
from evenstep.service.client.joining import Client

_LAUNCHER_SECONDS = 5.0  # after which a launcher ends the ranks that are left
_FORGOTTEN_SECONDS = 60.0
"""After which it ends those that wait for one that has failed: the registry that was told of it may
have died since."""


class CollectiveFailed(Exception):
    """A rank that others wait for is gone."""


@dataclass
class ClientReport:
    """What one rank did in one life."""

    rank: int
    life: int
    process: Process | None = None
    steps: list[Taken] = field(default_factory=list)
    saved: dict[int, str] = field(default_factory=dict)
    error: BaseException | None = None
    mesh: int = 0
    begun: bool = False
    changed: bool = False
    """Whether it has heard that the mesh has changed."""
    finished: bool = False
    ended_at: float = 0.0


class ServiceAttempt:
    """Runs a `ServiceRun`."""

    def __init__(
        self,
        setup: ServiceSetup,
        run: ServiceRun,
        choices: Choices,
        state: str | None,
        taking: list[list[int]],
    ) -> None:
        """
        Args:
            state: to resume from.
            taking: [meshes] the ranks that take steps.
        """
        self.setup, self.settings, self.state, self.taking = setup, run, state, taking
        self.stopped = sum(fault.seconds for fault in run.faults)
        self.world = World(choices, seconds=400 + 4 * self.stopped)
        self.cluster = Cluster(self.world, late=run.late, repeats=run.repeats)
        self.world.network = self.cluster
        self.injected = inject_faults(self.world, run.faults, self._cut)
        self.job = job_of(setup, run.mesh, buffer_size=run.buffer_size, slow=run.slow)
        self.first = 0 if state is None else int(json.loads(state)["step"])
        self.changed_at: int | None = None
        """The first step of the other mesh."""
        self.reports: list[ClientReport] = []
        self.service_error: BaseException | None = None
        self.closed_at: float | None = None
        self.status: dict[str, Any] = {}
        self.status_at = 0.0
        """When it was asked for: what roles say may be that old."""
        self._changed: list[Any] = []
        self.driver = simulated_processes.start_process(self.world, "service", self._serve, None)
        self._begin_life(0)

    def run(self) -> str | None:
        return self.world.run()

    def _cut(self, process: Process, fault: Fault) -> None:
        for actor in self.cluster.actors:
            if actor.process.name == fault.other:
                actor.cut(process)

    # The process that starts the service

    def _serve(self) -> None:
        run, world = self.settings, self.world
        service = None
        try:
            service = RayService(
                self.job,
                ray=es.RayOptions(address="local"),
                loaders=self._layout(run.loaders),
                faults=es.ServiceFaults(standbys=run.standbys, warn_after=5.0),
                constructors=run.constructors,
                state=None if self.state is None else json.loads(self.state),
            )
            change = simulated_threading.Thread(target=self._change, args=(service,), daemon=True)
            change.start()
            life = 0
            while self._await_life(life):
                change.join()
                changed = any(each.changed for each in self.reports if each.life == life)
                if not changed and life + 1 >= run.lives:
                    break
                life += 1
                self._begin_life(life, changed)
            change.join()
            self.status_at = world.now
            try:
                self.status = service.status()
            except EvenstepError:  # a registry may be longer in coming than a status waits
                self.status = service.status()
        except EvenstepError as error:
            self.service_error = error
        if service is not None:
            self.closed_at = world.now
            service.close()

    def _layout(self, loaders: int) -> es.SourceLayout:
        return es.SourceLayout.of(self.job.names, loaders, stripe=self.settings.stripe)

    def _change(self, service: RayService) -> None:
        """Other loaders, and another mesh, in the middle of a life."""
        try:
            for seconds, loaders in self.settings.changes:
                self.world.sleep(seconds)
                service.use_loaders(self._layout(loaders))
            if self.settings.remesh is not None:
                seconds, mesh = self.settings.remesh
                self.world.sleep(seconds)
                gone = [each.process.exited for each in self.reports if each.process is not None]
                self.world.until(lambda: not self._beginning(), self._changed, *gone)
                service.remesh(MESHES[mesh])
                self.job, self.changed_at = service.job, service._info.step
        except EvenstepError as error:
            self.service_error = error

    def _beginning(self) -> list[ClientReport]:
        return [
            each
            for each in self.reports
            if not (each.begun or each.ended_at or each.process is None) and each.process.alive
        ]

    @property
    def _closes(self) -> float | None:
        """When the service is closed, though trainers may not have ended. If they save at different
        steps and a registry took with it how far they had come, only a launcher can tell."""
        astray = self.settings.astray is not None
        forgets = any(
            (each.kind, each.process) == ("kill", "registry") for each in self.settings.faults
        )
        given = self.settings.closes
        return _FORGOTTEN_SECONDS + self.stopped if given is None and astray and forgets else given

    def _await_life(self, life: int) -> bool:
        """Waits for the trainers; whether they can begin once more."""
        world, reports = self.world, [each for each in self.reports if each.life == life]
        processes = [each.process for each in reports if each.process is not None]
        closes = self._closes
        limit = None if closes is None else max(closes - world.now, 0.0)
        gone = [process.exited for process in processes]

        def failed() -> bool:
            """Whether a rank ends for a reason of its own, so that the launcher ends the others."""
            alone = self.settings.astray is not None
            forgets = any(what.startswith("kill registry") for what, _ in self.injected)
            return any(
                process.exit_code == -9
                or (
                    forgets
                    and report.error is not None
                    and world.now >= report.ended_at + _FORGOTTEN_SECONDS
                )
                or isinstance(report.error, CollectiveFailed)
                or (alone and not process.alive)
                for process, report in zip(processes, reports, strict=True)
            )

        def over() -> bool:
            return failed() or not any(process.alive for process in processes)

        if not world.until(over, *gone, self._changed, timeout=limit):
            return False
        if failed():
            world.sleep(_LAUNCHER_SECONDS)
            for process in processes:
                world.exit(process, -9)
        elif any(report.error is not None for report in reports):
            return False
        return not all(report.finished for report in reports)

    # Trainers

    def _begin_life(self, life: int, changed: bool = False) -> None:
        """
        Args:
            changed: whether it begins where the mesh has changed.
        """
        step = None if not life or changed else self.checkpoint() or self.first
        for rank in self.job.tree.ranks.ravel().tolist():
            report = ClientReport(rank, life, mesh=int(changed))
            report.process = simulated_processes.start_process(
                self.world,
                f"rank{rank}.{life}",
                lambda report=report: self._train(report, step),
                None,
            )
            self.reports.append(report)

    def checkpoint(self) -> int | None:
        """The last step at which all ranks have saved."""
        saved = Counter(
            (mesh, step)
            for mesh, taking in enumerate(self.taking)
            for rank in taking
            for step in {
                step
                for each in self.reports
                if (each.mesh, each.rank) == (mesh, rank)
                for step in each.saved
            }
        )
        return max(
            (step for (mesh, step), count in saved.items() if count == len(self.taking[mesh])),
            default=None,
        )

    def saved_state(self, step: int) -> str:
        return next(each.saved[step] for each in self.reports if step in each.saved)

    def _train(self, report: ClientReport, step: int | None) -> None:
        try:
            # What is stopped may keep the service from starting for longer than a minute.
            with Client("auto", "job", report.rank, step=step, patience=300.0) as client:
                report.begun = True
                self.world.wake(self._changed)
                if client.fetches:
                    self._steps(client, report)
                else:
                    report.finished = True
        except MeshChangedError:
            report.changed = True
        except (EvenstepError, CollectiveFailed) as error:
            report.error = error
            self.world.after(_FORGOTTEN_SECONDS, lambda: self.world.wake(self._changed))
        report.ended_at = self.world.now
        self.world.wake(self._changed)

    def _steps(self, client: Client, report: ClientReport) -> None:
        run, setup = self.settings, self.setup
        leaves = run.leaves if report.life + 1 < run.lives else None
        if run.saves == 1:
            self._save(client, report)
        for micro_batches, step in client:
            report.steps.append(Taken.of(micro_batches, step))
            self.world.wake(self._changed)
            spend(run.slow)
            if run.lockstep or (run.begins and len(report.steps) == 1):
                self._await_ranks(report)
            if setup.follows:
                losses = loss_of(setup, step.step, report.rank)
                client.report(loss_by_source=losses)
            astray = run.astray == report.rank
            if (client.step + astray) % run.saves == 0:
                self._save(client, report)
            if len(report.steps) == leaves:
                return
        report.finished = True

    def _save(self, client: Client, report: ClientReport) -> None:
        report.saved[client.step] = json.dumps(client.common_state(), sort_keys=True)

    def _await_ranks(self, report: ClientReport) -> None:
        """A collective."""
        here = len(report.steps)
        others = [
            each
            for each in self.reports
            if each.life == report.life and each.rank in self.taking[each.mesh]
        ]

        def behind() -> list[ClientReport]:
            return [each for each in others if len(each.steps) < here]

        def ended() -> bool:
            return any(
                each.process is None or not each.process.alive or each.error is not None
                for each in behind()
            )

        gone = [each.process.exited for each in others if each.process is not None]
        self.world.until(lambda: not behind() or ended(), self._changed, *gone)
        if behind():
            raise CollectiveFailed
