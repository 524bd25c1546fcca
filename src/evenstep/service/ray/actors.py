"""`RoleActor`: a role of the service as an actor of Ray.

It forwards messages to the role, one at a time and in turn; the role itself knows nothing of Ray. A
Source Loader fills its buffers in a thread of its own, one source after the other between messages.

Actors are not restarted and calls are not repeated: one that dies is told to all clients.
"""

from __future__ import annotations

import os
import pickle
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from evenstep.errors import ConfigurationError, EvenstepError
from evenstep.service.data_constructor import DataConstructor
from evenstep.service.job import Job
from evenstep.service.layout import Layout
from evenstep.service.loaders import Loaders
from evenstep.service.metrics import payload_bytes
from evenstep.service.planner import Planner
from evenstep.service.ray.handles import Answer, RayHandle
from evenstep.service.ray.tensors import register_tensors
from evenstep.service.source_loader import SourceLoader

__all__ = ["RoleActor", "constructor", "loader", "planner"]

_BULK = ("fetch", "deliver")


class RoleActor:
    """See the module docstring."""

    def __init__(self) -> None:
        self._role: Any = None
        self._waits: dict[str, float] = {}
        self._turn = threading.Lock()
        self._wanted = False
        self._fill = threading.Event()
        self._failure: Exception | None = None
        self._done: Counter[str] = Counter()
        self._seconds: dict[str, float] = {}
        self._for_ever = threading.Event()

    def begin(
        self, build: Callable[..., Any], job: bytes, paths: Sequence[str], *arguments: Any
    ) -> Answer:
        """Makes the role; what cannot be opened is told here.

        Args:
            job: by cloudpickle.
            paths: where the process that started the service finds modules, such as those of the
                job's functions.
        """
        register_tensors()
        sys.path.extend(each for each in paths if each not in sys.path and os.path.isdir(each))
        try:
            self._role = build(self._waits, _unpacked(job), *arguments)
        except EvenstepError as error:
            return Answer(error=error)
        if isinstance(self._role, PacedLoader):
            threading.Thread(target=self._filling, daemon=True).start()
        return Answer((os.getpid(), socket.gethostname()))

    def handle(self, message: str, *arguments: Any) -> Answer:
        """A message of the role."""
        if message == "fill":
            self._fill.set()
            return Answer()
        begin = time.perf_counter()
        self._wanted = True
        with self._turn:
            self._wanted = False
            if self._failure is not None:
                return Answer(error=self._failure)
            before = dict(self._waits)
            try:
                value = getattr(self._role, message)(*arguments)
            except EvenstepError as error:
                return Answer(error=error)
        seconds = time.perf_counter() - begin
        waited = {key: total - before.get(key, 0.0) for key, total in self._waits.items()}
        self._done[message] += 1
        self._seconds[message] = self._seconds.get(message, 0.0) + seconds
        if message in _BULK:
            self._done[f"{message}_bytes"] += payload_bytes(value)
        stages = {name: took for name, took in waited.items() if took > 0}
        stages["work"] = max(seconds - sum(waited.values()), 0.0)
        return Answer(value, stages=stages)

    def stand_by(self) -> None:
        """Never answered: whoever waits for it learns when this process is gone."""
        self._for_ever.wait()

    def measure(self) -> dict[str, Any]:
        """JSON-able: what was done since the beginning, by message, and this process's memory."""
        return {
            "process": os.getpid(),
            "host": socket.gethostname(),
            "resident_bytes": _resident(),
            "done": dict(self._done),
            "seconds": dict(self._seconds),
            "waited_seconds": dict(self._waits),
        }

    def _filling(self) -> None:
        while True:
            self._fill.wait()
            self._fill.clear()
            for source in self._role.sources:
                while self._wanted:
                    time.sleep(0.0005)
                with self._turn:
                    try:
                        self._role.fill_one(source)
                    except Exception as error:
                        # Told to whoever sends the next message.
                        self._failure = error
                        return


def _unpacked(job: bytes) -> Job:
    try:
        made: Job = pickle.loads(job)
    except Exception as error:
        raise ConfigurationError(
            f"the job cannot be read on {socket.gethostname()} ({type(error).__name__}: {error}); "
            "have what its functions import there too, by runtime_env in ray_options="
        ) from error
    return made


class PacedLoader(SourceLoader):
    """Fills the buffer of one source at a time, so that no message waits for all of them."""

    @property
    def sources(self) -> tuple[str, ...]:
        return tuple(self._buffers)

    def fill_one(self, source: str) -> None:
        self._counts["prepared"] += self._buffers[source].fill()


# What actors are made of, in their own process


def loader(waits: dict[str, float], job: Job, layout: Layout, number: int) -> SourceLoader:
    if job.workers:
        _check_named(job)
    return PacedLoader(job, layout.shares[number], number)


def _check_named(job: Job) -> None:
    """What came here by value has no name by which a worker process could import it."""
    try:
        pickle.dumps(([source.transform for source in job.sources], job.measure))
    except Exception as error:
        raise ConfigurationError(
            f"workers={job.workers} of the job, and its functions cannot be sent on to worker "
            f"processes ({type(error).__name__}: {error}); define them in a module that the "
            "script imports, or choose workers=0 and more loaders="
        ) from error


def planner(
    waits: dict[str, float],
    job: Job,
    layout: Layout,
    loaders: list[RayHandle],
    state: dict[str, Any] | None,
    plan_log: str | None,
) -> Planner:
    handles = [handle.using(meter=waits) for handle in loaders]
    metadata = Loaders(layout, handles, columns=job.columns, read_ahead=True)
    made = Planner(job, metadata, plan_log=plan_log)
    if state is not None:
        made.load_state_dict(state)
    return made


def constructor(
    waits: dict[str, float],
    job: Job,
    layout: Layout,
    loaders: list[RayHandle],
    planner: RayHandle,
    groups: list[int],
) -> DataConstructor:
    handles = [handle.using(meter=waits) for handle in loaders]
    return DataConstructor(job, groups, planner.using(meter=waits), handles, layout)


def _resident() -> int:
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:  # no such file on this system
        return 0
