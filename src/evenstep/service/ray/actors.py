"""`RoleActor`: a role of the service as a Ray actor.

It passes messages on to the role, which knows nothing of Ray. Messages are handled one at a time in
order of arrival; only a Data Constructor, which waits for other roles, handles them in several
threads. A Source Loader fills its buffers in a background thread, one source after another between
messages, whenever a plan has taken samples out of them.

Actors are not restarted and calls are not repeated: a death is reported to all clients.
"""

from __future__ import annotations

import os
import pickle
import socket
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from importlib import import_module
from typing import TYPE_CHECKING, Any

from evenstep.errors import ConfigurationError, EvenstepError, described
from evenstep.service.handles import Message
from evenstep.service.job import Job
from evenstep.service.loader_pool import LoaderPool
from evenstep.service.metrics import payload_bytes
from evenstep.service.planner import Planner
from evenstep.service.ray.handles import Answer, RayHandle
from evenstep.service.ray.open_requests import OpenRequests, Request
from evenstep.service.ray.plan_cache import SHARED_BYTES, PlanCache
from evenstep.service.ray.priority_lock import PriorityLock, WaitTimer
from evenstep.service.ray.serializers import register_arrays, register_tensors
from evenstep.service.source_layout import SourceLayout
from evenstep.service.source_loader import LoaderJob, SourceLoader

if TYPE_CHECKING:
    from evenstep.service.data_constructor import DataConstructor

_FILL_CHUNK = 8  # samples that are prepared in the background before messages have their turn
_BULK = ("fetch", "deliver")  # messages whose answers have samples in them


class RoleActor:
    """See the module docstring."""

    def __init__(self) -> None:
        self._role: Any = None
        self._lock = PriorityLock()
        self._handled, self._waits = OpenRequests(), OpenRequests()
        self._timer = WaitTimer(self._waits)
        self._fill_wanted = threading.Event()
        self._failure: Exception | None = None
        self._counters_lock = threading.Lock()
        self._done: Counter[str] = Counter()
        self._seconds: dict[str, float] = {}
        self._waited: dict[str, float] = {}
        self._never = threading.Event()
        self._plans = PlanCache()

    def preload(self, module: str) -> None:
        """Imports what the role will need, while other roles are made."""
        import_module(module)

    def make_role(
        self, make: Callable[..., Any], job: bytes, paths: Sequence[str], *arguments: Any
    ) -> Answer:
        """Makes the role. The answer has the process and host, or the error.

        Args:
            job: by cloudpickle.
            paths: where the process that started the service finds modules, such as those of the
                job's functions.
        """
        sys.path.extend(each for each in paths if each not in sys.path and os.path.isdir(each))
        try:
            self._role = make(self._timer, _unpickle_job(job), *arguments)
        except EvenstepError as error:
            return Answer(error=error)
        if isinstance(self._role, SourceLoader):
            threading.Thread(target=self._fill_buffers, daemon=True).start()
        return Answer((os.getpid(), socket.gethostname()))

    def handle(self, sent: bytes) -> Any:
        """Handles messages in order, up to one that raises; the answer is the list of their
        answers. See `encode_messages`, `decode_answer` and `PlanCache`."""
        messages: Sequence[Message] = pickle.loads(sent)
        answer = self._answer(messages)
        if answer.error is None and not any(message in _BULK for message, _ in messages):
            encoded = pickle.dumps(answer, pickle.HIGHEST_PROTOCOL)
            if messages[0][0] == "plan" and len(encoded) > SHARED_BYTES:
                return self._plans.reference(messages[0][1][0], encoded)
            return encoded
        register_arrays()
        if "torch" in sys.modules:  # a process without tensors needs no torch
            register_tensors()
        return answer

    def _answer(self, messages: Sequence[Message]) -> Answer:
        in_threads = getattr(self._role, "in_threads", False)
        handled = self._handled.open(Request.of(*messages[-1]))
        with handled, nullcontext() if in_threads else self._lock.urgent():
            begin = time.perf_counter()
            self._timer.reset()
            if self._failure is not None:
                return Answer(error=self._failure)
            values: list[Any] = []
            done: Counter[str] = Counter()
            for message, arguments in messages:
                try:
                    value = getattr(self._role, message)(*arguments)
                except EvenstepError as error:
                    return Answer(error=error)
                except Exception:
                    raise
                except BaseException as error:
                    return Answer(error=_sendable(error))
                done[message] += 1
                if message in _BULK:
                    done[f"{message}_bytes"] += payload_bytes(value)
                values.append(value)
            stages = self._timer.waited
            seconds = time.perf_counter() - begin
        with self._counters_lock:
            self._done.update(done)
            _add(self._seconds, {messages[-1][0]: seconds})
            _add(self._waited, stages)
        stages["build"] = max(seconds - sum(stages.values()), 0.0)
        if "stage" in done:  # samples were taken out of the buffers
            self._fill_wanted.set()
        return Answer(values, stages=stages)

    def wait_forever(self) -> None:
        """Never answered: a caller that waits for it learns when this process is gone."""
        self._never.wait()

    def measure(self) -> dict[str, Any]:
        """JSON-able: what was done since the start, by message, and this process's memory; what it
        works on, and what it waits for."""
        with self._counters_lock:
            return {
                "process": os.getpid(),
                "host": socket.gethostname(),
                "resident_bytes": _resident_bytes(),
                "done": dict(self._done),
                "seconds": dict(self._seconds),
                "waited_seconds": dict(self._waited),
                "handles": self._handled.to_list(),
                "waits": self._waits.to_list(),
            }

    def _fill_buffers(self) -> None:
        while True:
            self._fill_wanted.wait()
            self._fill_wanted.clear()
            unfilled = list(self._role.sources)
            while unfilled:
                unfilled = [source for source in unfilled if self._fill_source(source)]
                if self._failure is not None:
                    return

    def _fill_source(self, source: str) -> bool:
        """Prepares a few samples of a source; returns whether there was room for any."""
        with self._lock.background():
            try:
                return bool(self._role.fill(source, _FILL_CHUNK))
            except BaseException as error:
                self._failure = _sendable(error)  # the answer to the next message
                return False


def _sendable(error: BaseException) -> Exception:
    """An error for the caller. Ray takes anything but an `Exception` for the actor's own end."""
    if isinstance(error, Exception):
        return error
    where = traceback.extract_tb(error.__traceback__)[-1]
    return EvenstepError(
        f"{described(error)} was raised in {where.filename}, line {where.lineno}, in a process of "
        "the service; raise an Exception there"
    )


def _add(totals: dict[str, float], more: Mapping[str, float]) -> None:
    for name, value in more.items():
        totals[name] = totals.get(name, 0.0) + value


def _unpickle_job(job: bytes) -> Any:
    try:
        return pickle.loads(job)
    except Exception as error:
        raise ConfigurationError(
            f"the job cannot be read on {socket.gethostname()} ({described(error)}); "
            "make the modules that its functions import available there, by runtime_env in "
            "ray_options="
        ) from error


# Makers of roles, called in the actor's process


def make_loader(timer: WaitTimer, job: LoaderJob) -> SourceLoader:
    return SourceLoader(job)


def make_planner(
    timer: WaitTimer,
    job: Job,
    layout: SourceLayout,
    loaders: list[RayHandle],
    state: dict[str, Any] | None,
    plan_log: str | None,
) -> Planner:
    handles = [handle.using(timer=timer) for handle in loaders]
    pool = LoaderPool(layout, handles, columns=job.columns)
    planner = Planner(job, pool, loaders=pool, plan_log=plan_log)
    if state is not None:
        planner.load_state_dict(state)
    return planner


def make_constructor(
    timer: WaitTimer,
    job: Job,
    layout: SourceLayout,
    loaders: list[RayHandle],
    planner: RayHandle,
    groups: list[int],
) -> DataConstructor:
    from evenstep.service.data_constructor import DataConstructor  # which needs torch

    return DataConstructor(
        job,
        groups,
        planner.using(timer=timer),
        [handle.using(timer=timer) for handle in loaders],
        layout,
        on_queued=lambda seconds: timer.add("queue", seconds),
    )


def _resident_bytes() -> int:
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:  # no such file on this system
        return 0
