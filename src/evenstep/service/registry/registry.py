"""`JobRegistry`: the part of a running job that trainers' processes find first.

It knows which process runs which role, and collects how long clients waited. It watches all roles,
and has dead processes replaced. When that is impossible, it tells the clients: each keeps one
pending `failed` question, which is answered only then, or when the service closes. As it waits for
no role itself, it can always say how the others are. No data of a step goes through it.
If it dies itself, its successor learns all this from roles and clients.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from evenstep.errors import EvenstepError, described
from evenstep.service.messages import Message
from evenstep.service.registry.common_state import CommonState, superseded
from evenstep.service.registry.metrics import MetricsExporter, TakenStep, WaitStatistics
from evenstep.service.registry.orders import Order, Orders
from evenstep.service.registry.pace import FREE, Pace, Room
from evenstep.service.registry.role_status import EventLog, fresh_clients, roles_status
from evenstep.service.registry.role_watch import WatchedRoles
from evenstep.service.remote.channels import Answer, Location, RoleGoneError, cause_of_death
from evenstep.service.remote.handles import RemoteHandle
from evenstep.service.remote.job_state import JobInfo, JobState
from evenstep.service.remote.role_host import SocketHost, sendable
from evenstep.service.remote.role_threads import in_thread

_EXPORT_INTERVAL = 5.0  # seconds
_FAREWELL = 0.05  # seconds in which the last answers are sent


class JobRegistry(SocketHost):
    """Its methods run in one event loop, except `submit`."""

    def __init__(self) -> None:
        self._state: JobState | None = None
        self._changed = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._failure: EvenstepError | None = None
        self._waits = WaitStatistics()
        self._clients: dict[int, int] = {}
        """By rank, the number of its last client."""
        self._numbers: dict[str, int] = {}
        """By the mark of a client, its number."""
        self._roles: WatchedRoles | None = None
        self._orders = Orders()

    async def open(
        self,
        job_state: JobState,
        exporter: MetricsExporter | None = None,
        standbys: Callable[[], list[dict[str, Any]]] = list,
        hung_after: float | None = None,
        kill: Callable[[Mapping[str, Any]], None] | None = None,
        events: EventLog | None = None,
        room: Callable[[], str] | None = None,
    ) -> None:
        """Makes the job known, and starts to watch its roles.

        Args:
            exporter: of figures to Prometheus.
            standbys: says, within a second, which standbys there are; see `status`.
            hung_after: seconds after which `kill` is called with a role that says nothing.
            events: where deaths and restarts are written.
            room: see `RoleWatch`.
        """
        self._loop = asyncio.get_running_loop()
        self._exporter, self._standbys = exporter, standbys
        self._events = events or EventLog(None)
        self._roles = WatchedRoles(
            self._events,
            warn_after=job_state.info.warn_after,
            room=room,
            on_error=self._raise_failure,
        )
        self._common_state = CommonState(job_state.info.planner, self._clients, self._end_of)
        self._pace = Pace(job_state.info.plans_kept, job_state.info.patience)
        await self.update(job_state)
        if hung_after and kill is not None:
            self._roles.begin(self._roles.end_silent(hung_after, kill))
        if exporter is not None:
            self._roles.begin(self._export_metrics())

    async def update(self, job_state: JobState) -> None:
        """Uses this state: watches its roles, and gives it to processes that join or restart."""
        before = self._state
        if before is not None and job_state.version <= before.version:
            return
        known = {} if before is None else {each.role: each for each in before.roles}

        def own(handle: RemoteHandle) -> RemoteHandle:
            """The handle in use here, which knows the role's process."""
            return known.get(handle.role, handle)

        info = replace(
            job_state.info,
            registry=job_state.info.registry if before is None else before.info.registry,
            planner=own(job_state.info.planner),
            loaders=tuple(map(own, job_state.info.loaders)),
            constructors=tuple((ranks, own(each)) for ranks, each in job_state.info.constructors),
        )
        self._state = replace(
            job_state,
            info=info,
            old_constructors=tuple(map(own, job_state.old_constructors)),
            old_loaders=tuple(map(own, job_state.old_loaders)),
        )
        if before is not None:
            if before.info.mesh != info.mesh:
                self._waits.forget_ranks()
                self._pace = Pace(info.plans_kept, info.patience)
            if before.mesh_begins != job_state.mesh_begins:
                self._common_state.end_mesh(job_state.mesh_begins[-1])
            if job_state.scaled and job_state.scaled[-1:] != before.scaled[-1:]:
                self._events.add("scaled", **job_state.scaled[-1])
        self._watched.follow(self._state.roles)
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def job_state(self) -> JobState:
        """For roles that start or restart."""
        assert self._state is not None
        return self._state

    # Messages

    def submit(self, messages: Sequence[Message]) -> Future[Answer]:
        """Has messages handled in the event loop, from any thread."""
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(self.answer(messages), self._loop)

    async def answer(self, messages: Sequence[Message]) -> Answer:
        """Handles messages in order, up to one that raises."""
        values = []
        for method, arguments, named in messages:
            try:
                values.append(await getattr(self, method)(*arguments, **named))
            except Exception as error:
                return Answer(error=sendable(error))
        return Answer(values)

    async def job(self) -> JobInfo | None:
        """With the locations of all roles. None before `open`."""
        while (job_state := self._state) is not None:
            for handle in job_state.info.roles:
                try:
                    if handle.place.known is None:
                        await in_thread(handle.place.location)
                except RoleGoneError as error:
                    if job_state is self._state:
                        raise cause_of_death(handle.name, error) from error
                    break  # it was taken out meanwhile
            else:
                return job_state.info
        return None

    async def locate(self, role: str, born: int) -> Location:
        """Which process runs a role, for a client that has lost its connections.

        Args:
            born: of the `Location` that the client knows.

        Raises:
            LoaderDiedError: the role is not restarted any more.
        """
        return await self._watched.locate(role, born)

    async def register_client(self, rank: int, mark: str) -> int:
        """Notes a new client of a rank, and returns its number, which tells its messages from those
        of an earlier client that may still be on their way. Later numbers are higher, also those
        that another registry gives.

        Args:
            mark: identifies the client, so that the message may arrive twice.
        """
        if mark not in self._numbers:
            if rank in self._clients:
                self._common_state.note_restart(rank)
            self._clients[rank] = max(self._clients.get(rank, 0) + 1, time.time_ns())
            self._numbers[mark] = self._clients[rank]
        return self._numbers[mark]

    async def failed(
        self, mesh: int = 0, end: int | None = None, comes: tuple[int, int, int] | None = None
    ) -> int | None:
        """Waits until a role has died for good, or the service is closed, and raises that; or until
        a mesh ends at another step than `end`, and returns that step.

        Args:
            comes: see `Pace.join`, of a client that takes part.
        """
        if comes is not None and mesh == self._job.mesh:  # another registry may have known it
            self._pace.join(*comes, time.monotonic())
        while True:
            if self._failure is not None:
                raise self._failure
            changed = self._changed
            ends_at = self._end_of(mesh)
            if ends_at != end:
                return ends_at
            await changed.wait()

    def _end_of(self, mesh: int) -> int | None:
        """See `JobState.end_of`."""
        return None if self._state is None else self._state.end_of(mesh)

    async def close(self) -> None:
        """Answers all pending `failed` questions, and ends the sockets. Idempotent."""
        if self._roles is not None:
            self._roles.close()
        of_job = "" if self._state is None else f" of job {self._state.info.name!r}"
        self._raise_failure(EvenstepError(f"the service{of_job} was closed"))
        if self._server is not None:
            await asyncio.sleep(_FAREWELL)
            self._server.close()

    # Clients

    async def record_steps(self, rank: int, client: int, records: Sequence[TakenStep]) -> None:
        """Notes steps that a client has taken, the last one last.

        Args:
            client: the number of the rank's client.
        """
        for record in records:
            self._waits.record_step(rank, record)
        if records and self._is_last(rank, client):
            self._common_state.took_step(rank, records[-1].step)
            self._pace.came(rank, client, records[-1].step + 1, time.monotonic())
        if self._exporter is not None:
            for record in records:
                self._exporter.observe_wait(record.seconds)

    async def reached(self) -> int:
        """The step that comes next in the client that is furthest, as far as clients have said."""
        return max((int(each["step"]) for each in self._waits.clients()), default=0)

    async def room(self, rank: int, client: int, mesh: int, step: int) -> Room:
        """How far a client may go that comes to a step next. One of an earlier mesh only has the
        steps that are left of it."""
        if mesh != self._job.mesh:
            return FREE
        self._pace.join(rank, client, step, time.monotonic())
        self._drop_late()
        return self._pace.room

    def _drop_late(self) -> None:
        for said in self._pace.drop_late(time.monotonic()):
            self._events.add("late", said)

    async def record_leave(self, rank: int, client: int) -> None:
        """Notes that a client is closed."""
        self._pace.leave(rank, client)

    async def record_end(self, rank: int) -> None:
        self._waits.record_end(rank)

    async def record_failure(self, rank: int, client: int, error: EvenstepError) -> None:
        self._pace.leave(rank, client)
        if self._is_last(rank, client):
            self._common_state.note_failure(rank, error)

    def _is_last(self, rank: int, client: int) -> bool:
        """Whether a client is the last of its rank. It may have started before this registry."""
        self._clients[rank] = max(self._clients.get(rank, 0), client)
        return self._clients[rank] == client

    async def common_state(
        self, rank: int, step: int, client: int, mesh: int, begins: bool
    ) -> Mapping[str, Any]:
        """See `CommonState.meet`."""
        if not self._is_last(rank, client):
            raise superseded(rank)
        answer = await self._common_state.meet(rank, step, client, mesh, begins)
        state: Mapping[str, Any] = answer.only()
        return state

    # Changes by hand

    async def note(self, event: str, about: Mapping[str, Any]) -> None:
        """Writes to the log of events."""
        self._events.add(event, **about)

    async def order(self, order: Order) -> Any:
        """See `Orders.carried_out`."""
        done = await self._orders.carried_out(order)
        about = {name: str(value) for name, value in order.arguments.items()}
        self._events.add("ordered", method=order.method, by=order.by, **about)
        return done

    async def next_order(self, mark: str, answer: Answer | None) -> Order:
        """See `Orders.next`."""
        return await self._orders.next(mark, answer)

    # Operation

    async def status(self) -> dict[str, Any]:
        """JSON-able: the state and counters of each role, and how long clients waited."""
        job, watches = self._job, self._watched.watches
        standbys = asyncio.ensure_future(in_thread(self._standbys))
        said = await asyncio.gather(*(each.status() for each in watches))
        handles = [each.handle for each in watches]
        roles = roles_status(handles, len(job.loaders), len(job.constructors), said)
        job_state = await self.job_state()
        self._drop_late()
        return {
            "backend": job.backend,
            "name": job.name,
            "run_id": job.run_id,
            "job": job.fingerprint,
            "mesh": dict(job.tree.sizes),
            "failed": None if self._failure is None else str(self._failure),
            "ended": self._waits.all_ended,
            "paused": job_state.held or None,
            "held": self._pace.held(),
            **roles,
            "standbys": await standbys,
            "clients": fresh_clients(self._waits.clients(), roles["constructors"]),
            "steps": self._waits.summary(),
            "restarting": await self._watched.restarting(),
            "restarts": self._watched.restarts,
            "scaled": [dict(each) for each in job_state.scaled],
            "short": list(job_state.short),
        }

    @property
    def _watched(self) -> WatchedRoles:
        assert self._roles is not None
        return self._roles

    @property
    def _job(self) -> JobInfo:
        assert self._state is not None
        return self._state.info

    async def _export_metrics(self) -> None:
        assert self._exporter is not None
        failed = False
        while True:
            await asyncio.sleep(_EXPORT_INTERVAL)
            try:
                self._exporter.export(await self.status())
            except Exception as error:  # metrics only observe
                if not failed:
                    self._events.add("unmeasured", f"metrics are not exported: {described(error)}")
                failed = True

    def _raise_failure(self, error: EvenstepError) -> None:
        if self._failure is None:
            self._failure = error
            self._changed.set()
