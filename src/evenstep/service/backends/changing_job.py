"""`ChangingJob`: a job whose loaders and mesh change while it runs, and no sample is lost.

A role that restarts must know the job's current state. So each change is first written to the
`JobState` that the registry has, and then sent to the running roles. All messages may be sent
twice.
"""

from __future__ import annotations

import threading
import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from evenstep.errors import ConfigurationError, EvenstepError
from evenstep.service.backends.running_job import RunningJob
from evenstep.service.backends.scaling_thread import ScalingThread
from evenstep.service.backends.steering import first_free, who
from evenstep.service.client.remote_client import RemoteClient
from evenstep.service.constructor.data_constructor import DataConstructor
from evenstep.service.job.job import Job
from evenstep.service.job.roles import (
    Loaders,
    check_not_taken,
    common_step,
    groups_of,
    layout_of,
    rank_of,
)
from evenstep.service.job.source_layout import LoaderJob
from evenstep.service.messages import call, message, results
from evenstep.service.planner.planner import Planner
from evenstep.service.planner.planner_state import check_state
from evenstep.service.registry.orders import Order
from evenstep.service.registry.registry import JobRegistry
from evenstep.service.remote.channels import Answer
from evenstep.service.remote.handles import RemoteHandle
from evenstep.service.remote.job_state import Constructors, JobInfo, JobState, check_name
from evenstep.service.remote.role_host import sendable
from evenstep.service.sizing.loader_planning import LoaderScaling
from evenstep.service.source_loader.source_loader import SourceLoader
from evenstep.service.start_options import StartOptions

_KEPT = 100  # changes of loaders, and answers to orders
_MOVING = "the mesh of the job changes"


class OwnedLoader(Protocol):
    """A loader that this process has started."""

    job: LoaderJob

    def handle(self) -> RemoteHandle:
        """The loader, once its sources are open.

        Raises:
            ConfigurationError: it was not ready in time, or a source cannot be opened.
        """
        ...

    def ask_to_end(self) -> None:
        """Idempotent."""
        ...

    def end(self) -> None:
        """Idempotent."""
        ...


class ChangingJob(RunningJob):
    """A job that this process has started. See the module docstring."""

    def __init__(self, job: Job, options: StartOptions) -> None:
        check_name(options.name)
        if options.state is not None:
            check_state(options.state)
        self.job = job.opened()
        self._options = options
        self._faults, self._logs = options.faults, options.logs
        self._layout = layout_of(job, options.loaders)
        """The layout at the start."""
        self._groups = groups_of(job, options.constructors)
        self._loaders: list[Any] = []
        """Each an `OwnedLoader`, in the order of the layout."""
        self._started = 0
        """Loaders, since the start."""
        self._clients: list[RemoteClient] = []
        self._old_clients: list[RemoteClient] = []
        """Clients of earlier meshes."""
        self._changing = threading.Lock()
        self._state_lock = threading.Lock()
        self._scaling: ScalingThread | None = None
        self.asked_to_end = threading.Event()
        """Somebody elsewhere has ordered the end."""
        self._state: JobState
        """With the `JobInfo` that is `_info`."""

    def _begin_state(
        self,
        backend: str,
        run_id: int,
        registry: RemoteHandle,
        planner: RemoteHandle,
        constructors: Constructors,
    ) -> None:
        """The state of a job that starts, with the loaders that there are."""
        job, state = self.job, self._options.state
        self._info = JobInfo(
            name=self._options.name,
            backend=backend,
            run_id=run_id,
            fingerprint=job.fingerprint,
            tree=job.tree,
            prefetch=job.memory.prefetch,
            warn_after=self._faults.warn_after,
            plans_kept=job.memory.plans_kept,
            patience=self._faults.patience,
            step=0 if state is None else int(state["step"]),
            registry=registry,
            planner=planner,
            loaders=tuple(each.handle() for each in self._loaders),
            constructors=constructors,
            step_log=None if self._logs.steps is None else str(self._logs.steps),
        )
        self._state = JobState(
            info=self._info, layout=self._layout, tree=job.tree, planner_state=state
        )

    # What backends do in their own ways

    @abstractmethod
    def _new_loader(self, part: LoaderJob) -> OwnedLoader:
        """Starts a loader."""

    @abstractmethod
    def _new_constructors(self, job: Job, mesh: int, groups: list[list[int]]) -> Constructors:
        """Starts constructors, and waits until they are ready."""

    @abstractmethod
    def _end_constructors(self, handles: Sequence[RemoteHandle]) -> None:
        """Ends constructors that have no more clients."""

    @abstractmethod
    def _tell(self, job_state: JobState) -> None:
        """Sends the state to the registry; see `JobRegistry.update`."""

    # Clients

    def client(self, rank: int | None = None, **place: int) -> RemoteClient:
        """The client of a rank, given by its number or its coordinates, in this process; see
        `LocalService.client`. Trainers in other processes make an `evenstep.service.Client`."""
        self._check_open()
        client = RemoteClient(self._info, rank_of(self.job, rank, place))
        self._clients.append(client)
        return client

    def status(self) -> dict[str, Any]:
        for client in self._clients:
            client.report_steps()
        return super().status()

    def state_dict(self, step: int | None = None) -> dict[str, Any]:
        """The state to resume from; see `LocalService.state_dict`.

        Raises:
            ConfigurationError: clients have taken different numbers of steps, or the state before
                the step is not kept.
        """
        self._check_open()
        reached = {client["rank"]: client["step"] for client in self.status()["clients"]}
        reached.update({client.rank: client.step for client in self._clients})
        if step is None:
            step = common_step(self._info.step, reached)
        taken = step <= max(reached.values(), default=0)
        return call(self._planner, Planner.state_dict, step, taken=taken)

    def _close_clients(self) -> None:
        for client in [*self._clients, *self._old_clients]:
            client.close()

    # Loaders

    def use_loaders(self, loaders: Loaders) -> None:
        """Replaces the loaders without changing any batch. New loaders are started, read ahead, and
        are used from the next plan on; then those that are not needed end. Until then trainers get
        what the old ones prepare.

        Args:
            loaders: see `evenstep.service.start`.

        Raises:
            ConfigurationError: a new loader is not ready in time, or cannot open its sources; the
                old ones keep running.
        """
        self._check_open()
        with self._changing:
            layout = layout_of(self.job, loaders)
            left, following, started = list(self._loaders), [], []
            try:
                for part in self.job.loader_jobs(layout, first=self._started):
                    found = next((each for each in left if each.job.does_as(part)), None)
                    if found is None:
                        found = self._new_loader(part)
                        started.append(found)
                    else:
                        left.remove(found)
                    following.append(found)
                handles = [each.handle() for each in following]
                self._read_ahead([each.handle() for each in started])
            except BaseException:
                for each in started:
                    each.end()
                raise
            self._started += len(layout.shares)
            self._loaders = following
            self._update_state(
                info=replace(self._info, loaders=tuple(handles)),
                layout=layout,
                old_loaders=tuple(each.handle() for each in left),
                loaders_started=self._started,
            )
            used: list[tuple[RemoteHandle, Any]] = [(self._info.planner, Planner.use_loaders)]
            made = [*(each for _, each in self._info.constructors), *self._state.old_constructors]
            used += [(each, DataConstructor.use_loaders) for each in made]
            results([each.send(method, handles, layout) for each, method in used])
            self._update_state(old_loaders=())
            for each in left:
                each.ask_to_end()
            for each in left:
                each.end()

    def _read_ahead(self, loaders: Sequence[RemoteHandle]) -> None:
        """Has loaders prepare what comes next of their sources."""
        reached = call(self._info.planner, Planner.reached)
        asked = []
        for handle, sources in zip(
            loaders, results([each.send(SourceLoader.describe) for each in loaders])
        ):
            messages = [
                message(SourceLoader.ahead, name, reached[name][0], 2 * reached[name][1])
                for name in sources
                if name in reached
            ]
            if messages:
                asked.append(handle.send_all(messages))
        results(asked)

    def _begin_scaling(self, scaling: Loaders) -> None:
        """Changes the loaders from now on, if they are to be changed."""
        if isinstance(scaling, LoaderScaling):
            self._scaling = ScalingThread(scaling, self)

    def planner_status(self) -> Mapping[str, Any]:
        """See `Planner.status`."""
        return call(self._info.planner, Planner.status)

    def note_scaling(self, short: tuple[str, ...], change: Mapping[str, Any] | None) -> None:
        """Has the status say what `ScalingThread` has found.

        Args:
            short: see `WantedLoaders`.
            change: of the loaders, JSON-able: loaders and workers before and after, at which step,
                in how many seconds; None if they have not changed.
        """
        scaled = self._state.scaled + (() if change is None else (change,))
        self._update_state(short=short, scaled=scaled[-_KEPT:])

    def _end_scaling(self) -> None:
        """Idempotent."""
        if self._scaling is not None:
            self._scaling.close()

    # The mesh

    def remesh(self, mesh: Any, at_step: int | None = None) -> None:
        """Changes the mesh at a step; see `LocalService.remesh`. Clients of the old mesh, in all
        processes, get the steps before it, and then `MeshChangedError`. Clients that are made from
        now on belong to the new mesh, and begin there. Clients of earlier meshes get no more steps.

        Args:
            mesh: see `LocalService.remesh`.
            at_step: None is the first step that no client has requested. An earlier one is for
                ranks that are lost: clients of the previous mesh drop what they have
                requested from there on.

        Raises:
            ConfigurationError: a client has taken the step already, or the job does not go with the
                mesh.
            EvenstepError: a step before it cannot be planned.
        """
        self._check_open()
        with self._changing:
            job = self.job.on(mesh)
            count = self._options.constructors
            groups = groups_of(job, None if count is None else min(count, job.tree.sizes["DP"]))
            before = tuple(handle for _, handle in self._info.constructors)
            step: int | None = None
            if self._state.held:
                raise ConfigurationError(f"{self._state.held}; then change the mesh")
            self._update_state(held=_MOVING)
            try:
                first = self._first_step(before, at_step)
                state = call(self._info.planner, Planner.remesh, job.tree, first)
                step = state["step"]  # not after the end of the mixture
            finally:
                changes: dict[str, Any] = {}
                if step is not None:
                    begins = (*self._state.mesh_begins, step)
                    changes = {"mesh_begins": begins, "tree": job.tree, "planner_state": state}
                self._update_state(held="", **changes)
                results([each.send(DataConstructor.end_at, step) for each in before])
            # Again, for a planner without a store that restarted before the state was updated.
            call(self._info.planner, Planner.remesh, job.tree, step)
            results([loader.send(SourceLoader.drop_from, step) for loader in self._info.loaders])
            number = len(begins)
            made = self._new_constructors(job, number, groups)
            self.job = job
            info = replace(self._info, tree=job.tree, mesh=number, step=step, constructors=made)
            ended = self._state.old_constructors
            self._update_state(info=info, old_constructors=before)
            self._old_clients += self._clients
            self._clients = []
            self._end_constructors(ended)

    def _first_step(self, constructors: Sequence[RemoteHandle], at_step: int | None) -> int:
        """The first step of the next mesh. Constructors start no step until `end_at`."""
        held = results([each.send(DataConstructor.hold, _MOVING) for each in constructors])
        for client in self._clients:
            client.report_steps()
        reached, free = first_free(
            held,
            first=self._info.step,
            reached=call(self._info.registry, JobRegistry.reached),
            prefetch=self._info.prefetch,
        )
        if at_step is not None:
            check_not_taken(at_step, reached)
        return free if at_step is None else at_step

    # Pauses

    def pause(self, by: str | None = None) -> None:
        """Lets no rank begin another step; those that have begun one get it. Trainers wait.

        Args:
            by: for messages; None is the user of this process.

        Raises:
            ConfigurationError: it is paused already.
        """
        self._check_open()
        with self._changing:
            if self._state.held:
                raise ConfigurationError(self._state.held)
            now = time.strftime("%Y-%m-%d %H:%M:%S")
            why = f"the job is paused since {now} by {by or who()}; resume it"
            self._update_state(held=why)
            results([each.send(DataConstructor.hold, why) for _, each in self._info.constructors])

    def resume(self) -> None:
        """Ends a pause.

        Raises:
            ConfigurationError: the job is not paused.
        """
        self._check_open()
        with self._changing:
            if not self._state.held:
                raise ConfigurationError(f"job {self.name!r} is not paused")
            self._update_state(held="")
            end = DataConstructor.end_at
            results([each.send(end, None) for _, each in self._info.constructors])

    # Orders

    def end(self) -> None:
        """Has the job end, as its owner sees `asked_to_end`."""
        self.asked_to_end.set()

    def note(self, event: str, **about: Any) -> None:
        """Writes to the log of events."""
        call(self._info.registry, JobRegistry.note, event, about)

    def _begin_orders(self) -> None:
        """Carries out, from now on, what others order."""
        threading.Thread(target=self._follow_orders, name="evenstep-orders", daemon=True).start()

    def _follow_orders(self) -> None:
        mark, answers = "", dict[str, Answer]()
        while not self._closed:
            try:
                order = call(self._info.registry, JobRegistry.next_order, mark, answers.get(mark))
            except EvenstepError:
                return  # the service has ended
            except Exception:
                if self._closed:
                    return  # so has Ray, by which the registry is found
                raise
            mark = order.mark
            if mark not in answers:
                answers[mark] = self._carried_out(order)
                if len(answers) > _KEPT:
                    del answers[next(iter(answers))]

    def _carried_out(self, order: Order) -> Answer:
        given = dict(order.arguments)
        try:
            if order.method == "pause":
                given["by"] = order.by
            if order.method == "use_loaders" and self._scaling is not None:
                raise ConfigurationError(
                    "the job was started with a LoaderScaling, which changes the loaders itself"
                )
            return Answer(getattr(self, order.method)(**given))
        except Exception as error:
            return Answer(error=sendable(error))

    # The job's state

    def _update_state(self, **changes: Any) -> None:
        """Changes the job's state, and tells the registry."""
        with self._state_lock:
            version = self._state.version + 1
            self._state = replace(self._state, version=version, **changes)
            self._info = self._state.info
            self._tell(self._state)
