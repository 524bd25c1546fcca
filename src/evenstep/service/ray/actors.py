"""`RoleActor`: a role of the service as an actor of Ray.

It forwards messages to the role; the role itself knows nothing of Ray. They are handled one at a
time and in turn, but for those of a Data Constructor, which waits for others in several threads. A
Source Loader fills its buffers in a thread of its own, one source after the other between messages,
when a plan has taken something out of them.

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
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from evenstep.errors import ConfigurationError, EvenstepError
from evenstep.service.handles import Message
from evenstep.service.job import Job
from evenstep.service.loader_job import LoaderJob
from evenstep.service.loader_pool import LoaderPool
from evenstep.service.metrics import payload_bytes
from evenstep.service.planner import Planner
from evenstep.service.ray.arrays import register_arrays
from evenstep.service.ray.handles import Answer, RayHandle
from evenstep.service.ray.plan_cache import SHARED_BYTES, PlanCache
from evenstep.service.ray.priority_lock import PriorityLock, WaitTimer
from evenstep.service.source_layout import SourceLayout
from evenstep.service.source_loader import SourceLoader

if TYPE_CHECKING:
    from evenstep.service.data_constructor import DataConstructor

__all__ = ["RoleActor", "constructor", "loader", "planner"]

_AT_ONCE = 8  # samples that are prepared before messages have their turn
_BULK = ("fetch", "deliver")


class RoleActor:
    """See the module docstring."""

    def __init__(self) -> None:
        self._role: Any = None
        self._turns = PriorityLock()
        self._meter = WaitTimer()
        self._fill = threading.Event()
        self._failure: Exception | None = None
        self._counting = threading.Lock()
        self._done: Counter[str] = Counter()
        self._seconds: dict[str, float] = {}
        self._waited: dict[str, float] = {}
        self._for_ever = threading.Event()
        self._shared = PlanCache()

    def load(self, module: str) -> None:
        """Imports what the role will need, while others are made."""
        import_module(module)

    def begin(
        self, build: Callable[..., Any], job: bytes, paths: Sequence[str], *arguments: Any
    ) -> Answer:
        """Makes the role; what cannot be opened is told here.

        Args:
            job: by cloudpickle.
            paths: where the process that started the service finds modules, such as those of the
                job's functions.
        """
        sys.path.extend(each for each in paths if each not in sys.path and os.path.isdir(each))
        try:
            self._role = build(self._meter, _unpacked(job), *arguments)
        except EvenstepError as error:
            return Answer(error=error)
        if isinstance(self._role, SourceLoader):
            threading.Thread(target=self._filling, daemon=True).start()
        return Answer((os.getpid(), socket.gethostname()))

    def handle(self, sent: bytes) -> Any:
        """Messages of the role, in order, up to one that raises; the answer is a list of theirs.
        See `packed`, `opened` and `shared`."""
        messages: Sequence[Message] = pickle.loads(sent)
        answer = self._answered(messages)
        if answer.error is None and not any(message in _BULK for message, _ in messages):
            told = pickle.dumps(answer, pickle.HIGHEST_PROTOCOL)
            if messages[0][0] == "plan" and len(told) > SHARED_BYTES:
                return self._shared.reference(messages[0][1][0], told)
            return told
        _let_arrays_travel()
        if "torch" in sys.modules:
            _let_tensors_travel()
        return answer

    def _answered(self, messages: Sequence[Message]) -> Answer:
        with nullcontext() if _in_threads(self._role) else self._turns.first():
            begin = time.perf_counter()
            self._meter.begin()
            if self._failure is not None:
                return Answer(error=self._failure)
            values: list[Any] = []
            done: Counter[str] = Counter()
            for message, arguments in messages:
                try:
                    value = getattr(self._role, message)(*arguments)
                except EvenstepError as error:
                    return Answer(error=error)
                done[message] += 1
                if message in _BULK:
                    done[f"{message}_bytes"] += payload_bytes(value)
                values.append(value)
            stages = self._meter.waited
            seconds = time.perf_counter() - begin
        with self._counting:
            self._done.update(done)
            _add(self._seconds, {messages[-1][0]: seconds})
            _add(self._waited, stages)
        stages["work"] = max(seconds - sum(stages.values()), 0.0)
        if "stage" in done:
            self._fill.set()  # what was taken out of the buffers
        return Answer(values, stages=stages)

    def stand_by(self) -> None:
        """Never answered: whoever waits for it learns when this process is gone."""
        self._for_ever.wait()

    def measure(self) -> dict[str, Any]:
        """JSON-able: what was done since the beginning, by message, and this process's memory."""
        with self._counting:
            return {
                "process": os.getpid(),
                "host": socket.gethostname(),
                "resident_bytes": _resident(),
                "done": dict(self._done),
                "seconds": dict(self._seconds),
                "waited_seconds": dict(self._waited),
            }

    def _filling(self) -> None:
        while True:
            self._fill.wait()
            self._fill.clear()
            lacking = list(self._role.sources)
            while lacking:
                lacking = [source for source in lacking if self._filled(source)]
                if self._failure is not None:
                    return

    def _filled(self, source: str) -> bool:
        """Whether samples of a source were prepared, and not all that it may have."""
        with self._turns.last():
            try:
                return bool(self._role.fill_one(source, _AT_ONCE))
            except Exception as error:
                self._failure = error  # told to whoever sends the next message
                return False


def _add(totals: dict[str, float], more: Mapping[str, float]) -> None:
    for name, value in more.items():
        totals[name] = totals.get(name, 0.0) + value


def _in_threads(role: Any) -> bool:
    """Whether messages may come to a role at the same time."""
    return bool(getattr(role, "in_threads", False))


@cache
def _let_arrays_travel() -> None:
    register_arrays()


@cache
def _let_tensors_travel() -> None:
    """Not before there may be some: a process that has none needs no torch."""
    from evenstep.service.ray.tensors import register_tensors

    register_tensors()


def _unpacked(job: bytes) -> Job:
    try:
        made: Job = pickle.loads(job)
    except Exception as error:
        raise ConfigurationError(
            f"the job cannot be read on {socket.gethostname()} ({type(error).__name__}: {error}); "
            "have what its functions import there too, by runtime_env in ray_options="
        ) from error
    return made


# What actors are made of, in their own process


def loader(meter: WaitTimer, job: LoaderJob) -> SourceLoader:
    return SourceLoader(job)


def planner(
    meter: WaitTimer,
    job: Job,
    layout: SourceLayout,
    loaders: list[RayHandle],
    state: dict[str, Any] | None,
    plan_log: str | None,
) -> Planner:
    handles = [handle.using(meter=meter) for handle in loaders]
    metadata = LoaderPool(layout, handles, columns=job.columns)
    made = Planner(job, metadata, plan_log=plan_log)
    if state is not None:
        made.load_state_dict(state)
    return made


def constructor(
    meter: WaitTimer,
    job: Job,
    layout: SourceLayout,
    loaders: list[RayHandle],
    planner: RayHandle,
    groups: list[int],
) -> DataConstructor:
    from evenstep.service.data_constructor import DataConstructor  # which needs torch

    handles = [handle.using(meter=meter) for handle in loaders]
    return DataConstructor(
        job,
        groups,
        planner.using(meter=meter),
        handles,
        layout,
        queued=lambda seconds: meter.add("queue", seconds),
    )


def _resident() -> int:
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:  # no such file on this system
        return 0
