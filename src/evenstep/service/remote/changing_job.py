"""`ChangingJob`: a job whose loaders and mesh change while it runs, and no sample is lost.

Whoever begins a role's process anew must know how the job stands by now. So what changes is first
written down in the job's `Standing`, which its registry has, and then told to those that are there.
All messages may be told twice.
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

from evenstep.errors import ConfigurationError
from evenstep.service.backend_common import Loaders, groups_of, layout_of
from evenstep.service.handles import Message, call, results
from evenstep.service.job import Job
from evenstep.service.remote.client import RemoteClient
from evenstep.service.remote.handles import RemoteHandle
from evenstep.service.remote.job_info import Constructors
from evenstep.service.remote.running_job import OwnedJob
from evenstep.service.remote.scaling_thread import ScalingThread
from evenstep.service.remote.standing import Standing
from evenstep.service.sizing.loader_scaling import LoaderScaling
from evenstep.service.source_loader import LoaderJob

_KEPT = 100  # changes of loaders


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


class ChangingJob(OwnedJob):
    """See the module docstring."""

    def __init__(self, job: Job, *, constructors: int | None, stripe: int) -> None:
        super().__init__(job)
        self._constructors, self._stripe = constructors, stripe
        self._loaders: list[Any] = []
        """Each an `OwnedLoader`, in the order of the layout."""
        self._started = 0
        """Loaders, since the start."""
        self._former_clients: list[RemoteClient] = []
        """Of meshes before."""
        self._changing = threading.Lock()
        self._standing_lock = threading.Lock()
        self._scaling: ScalingThread | None = None
        self._standing: Standing
        """With the `JobInfo` that is `_info`."""

    # What backends do in their own ways

    @abstractmethod
    def _new_loader(self, part: LoaderJob) -> OwnedLoader:
        """Begins a loader."""

    @abstractmethod
    def _new_constructors(self, job: Job, mesh: int, groups: list[list[int]]) -> Constructors:
        """Begins constructors, and waits until they are there."""

    @abstractmethod
    def _end_constructors(self, handles: Sequence[RemoteHandle]) -> None:
        """Ends constructors that have no clients any more."""

    @abstractmethod
    def _tell(self, standing: Standing) -> None:
        """Tells the registry; see `JobRegistry.stand`."""

    # Loaders

    def use_loaders(self, loaders: Loaders) -> None:
        """Goes on with other loaders, and changes no batch: those that are new are started, read
        what comes next, and are used from the next plan on; then those that are not among them end.
        Until then trainers get what the others prepare.

        Args:
            loaders: see `evenstep.service.start`.

        Raises:
            ConfigurationError: a new loader is not ready in time, or cannot open its sources; the
                others go on.
        """
        self._check_open()
        with self._changing:
            layout = layout_of(self.job, loaders, self._stripe)
            left, following, begun = list(self._loaders), [], []
            try:
                for part in self.job.loader_jobs(layout, first=self._started):
                    found = next((each for each in left if each.job.does_as(part)), None)
                    if found is None:
                        found = self._new_loader(part)
                        begun.append(found)
                    else:
                        left.remove(found)
                    following.append(found)
                handles = [each.handle() for each in following]
                self._read_ahead([each.handle() for each in begun])
            except BaseException:
                for each in begun:
                    each.end()
                raise
            self._started += len(layout.shares)
            self._loaders = following
            self._stand(
                info=replace(self._info, loaders=tuple(handles)),
                layout=layout,
                leaving=tuple(each.handle() for each in left),
                numbered=self._started,
            )
            users = [self._info.planner, *self._all_constructors()]
            results([each.send("use_loaders", handles, layout) for each in users])
            self._stand(leaving=())
            for each in left:
                each.ask_to_end()
            for each in left:
                each.end()

    def _read_ahead(self, loaders: Sequence[RemoteHandle]) -> None:
        """Has loaders prepare what comes next of their sources."""
        reached = call(self._info.planner, "reached")
        asked = []
        for handle, sources in zip(loaders, results([each.send("describe") for each in loaders])):
            messages: list[Message] = [
                ("ahead", (name, reached[name][0], 2 * reached[name][1]))
                for name in sources
                if name in reached
            ]
            if messages:
                asked.append(handle.send_all(messages))
        results(asked)

    def _begin_scaling(self, scaling: LoaderScaling) -> None:
        planner_status = partial(call, self._info.planner, "status")
        self._scaling = ScalingThread(scaling, planner_status, self.use_loaders, self._note_scaling)
        self._scaling.begin()

    def _note_scaling(self, short: tuple[str, ...], change: Mapping[str, Any] | None) -> None:
        scaled = self._standing.scaled + (() if change is None else (change,))
        self._stand(short=short, scaled=scaled[-_KEPT:])

    def _close_clients(self) -> None:
        super()._close_clients()
        for client in self._former_clients:
            client.close()

    def _end_scaling(self) -> None:
        """Idempotent."""
        if self._scaling is not None:
            self._scaling.close()

    # The mesh

    def remesh(self, mesh: Any, at_step: int | None = None) -> None:
        """Goes on for another mesh from a step on; see `LocalService.remesh`. Clients of the mesh
        before, in all processes, get the steps before it, and then `MeshChangedError`; clients that
        are made from now on are of the new mesh, and begin there. Clients of the mesh before that
        one get no more steps.

        Args:
            mesh: see `LocalService.remesh`.
            at_step: None is the first step that no client has requested. An earlier one is for
                ranks that are lost: what clients of the mesh before have requested from there on,
                they do not hand out any more.

        Raises:
            ConfigurationError: a client has taken the step already, or the job does not go with the
                mesh.
            EvenstepError: a step before it cannot be planned.
        """
        self._check_open()
        with self._changing:
            job = self.job.on(mesh)
            count = self._constructors
            groups = groups_of(job, None if count is None else min(count, job.tree.sizes["DP"]))
            before = tuple(handle for _, handle in self._info.constructors)
            step: int | None = None
            self._stand(held=True)
            try:
                first = self._first_step(before, at_step)
                state = call(self._info.planner, "remesh", job.tree, first)
                step = state["step"]  # not after the end of the mixture
            finally:
                if step is None:
                    self._stand(held=False)
                else:
                    begins = (*self._standing.begins, step)
                    self._stand(held=False, begins=begins, tree=job.tree, state=state)
                results([each.send("end_at", step) for each in before])
            # Again, for one that had no store and was begun anew before this was written down.
            call(self._info.planner, "remesh", job.tree, step)
            results([loader.send("drop_from", step) for loader in self._info.loaders])
            number = len(begins)
            made = self._new_constructors(job, number, groups)
            self.job = job
            info = replace(self._info, tree=job.tree, mesh=number, step=step, constructors=made)
            ended = self._standing.former
            self._stand(info=info, former=before)
            self._former_clients += self._clients
            self._clients = []
            self._end_constructors(ended)

    def _first_step(self, constructors: Sequence[RemoteHandle], at_step: int | None) -> int:
        """The first step of the next mesh. From now on the constructors begin none."""
        held = results([each.send("hold") for each in constructors])
        for client in self._clients:
            client.report_steps()
        told: int = call(self._info.registry, "reached")
        reached: int = max(self._info.step, told, *(taken for taken, _ in held))
        if at_step is not None:
            if at_step < reached:
                raise ConfigurationError(
                    f"at_step={at_step}, but a client comes to step {reached} next; choose that or "
                    "a later one"
                )
            return at_step
        free: int = max(reached, *(begun + 1 for _, begun in held))
        if reached > self._info.step and any(begun < 0 for _, begun in held):
            # Of one that was begun anew it is only known how far clients may have requested.
            free = max(free, reached + self.job.prefetch + 1)
        return free

    # How the job stands

    def _all_constructors(self) -> list[RemoteHandle]:
        return [*(handle for _, handle in self._info.constructors), *self._standing.former]

    def _stand(self, **changes: Any) -> None:
        """Writes down how the job stands from now on."""
        with self._standing_lock:
            number = self._standing.number + 1
            self._standing = replace(self._standing, number=number, **changes)
            self._info = self._standing.info
            self._tell(self._standing)
