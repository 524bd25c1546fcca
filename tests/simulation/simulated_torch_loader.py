"""torch's DataLoader, simulated where it has workers.

As torch's: each worker has a queue of requests, all share one for results; requests go round the
workers, a few ahead; results are handed over in the order of requests, and the next request is made
before one is handed over. The death of a worker is raised from a handler of SIGCHLD.
"""

from __future__ import annotations

import pickle
import weakref
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import simulated_pipes
import torch.utils.data
from simulated_processes import Process, signal
from simulated_world import SIGCHLD, Killed, current
from torch.utils.data import IterableDataset

_GRACE = 5.0  # seconds that torch gives a worker to end


class _Ended:
    """A worker of an iterable dataset has nothing more."""


def worker_info() -> Any:
    return getattr(current().process, "worker_info", None)


def DataLoader(dataset: Any, *, num_workers: int = 0, **options: Any) -> Any:
    if num_workers:
        return _Loader(dataset, num_workers, **options)
    return torch.utils.data.DataLoader(dataset, num_workers=0, **options)


class _Loader:
    def __init__(
        self,
        dataset: Any,
        num_workers: int,
        *,
        collate_fn: Callable[[Any], Any],
        timeout: float,
        worker_init_fn: Callable[[int], None],
        generator: Any,
        persistent_workers: bool,
        prefetch_factor: int | None = None,
        multiprocessing_context: Any = None,
        batch_sampler: Any = None,
        batch_size: None = None,
    ) -> None:
        self.dataset, self.count, self.timeout = dataset, num_workers, timeout
        self.collate, self.init = collate_fn, worker_init_fn
        self.persistent, self.ahead = persistent_workers, (prefetch_factor or 2) * num_workers
        context = multiprocessing_context
        self.method = context.get_start_method() if context is not None else "fork"
        self.sampler = batch_sampler
        self._kept: _Workers | None = None

    def __iter__(self) -> Iterator[Any]:
        if not self.persistent:
            return _Iterator(self, _Workers(self))
        if self._kept is None:
            self._kept = _Workers(self)
        self._kept.begin_again()
        return _Iterator(self, self._kept)


class _Workers:
    """The processes; they end with this object."""

    def __init__(self, loader: _Loader) -> None:
        process = current().process
        world = process.world
        self._process = process
        self.requests, self.processes, asked = [], [], []
        for _ in range(loader.count):
            theirs, ours = simulated_pipes.pipe(False, first=process, second=process)
            self.requests.append(ours)
            asked.append(theirs)
        self.results, results = simulated_pipes.pipe(
            False, first=process, second=process, capacity=world.capacity
        )
        for number in range(loader.count):
            dataset = loader.dataset
            if isinstance(dataset, IterableDataset):  # it changes: each process has its own
                dataset = pickle.loads(pickle.dumps(dataset))
            place = number, loader.count
            worker = Process(
                target=_work,
                args=(dataset, loader.collate, loader.init, place, asked[number], results),
                name=f"worker{number}",
                daemon=True,
                method=loader.method,
            )
            worker.start()
            self.processes.append(worker)
        # torch's queues are held at both ends by all; a death shows as a signal, never as an EOF.
        self._held = asked, results
        self.passes = 0
        self.closing = False
        workers_of = process.__dict__.setdefault("workers_of_torch", weakref.WeakSet())
        workers_of.add(self)
        if not callable(signal.getsignal(SIGCHLD)):
            signal.signal(SIGCHLD, _on_death)

    def begin_again(self) -> None:
        self.passes += 1
        for requests in self.requests:
            requests.send((self.passes, None, None))

    def check(self, *, polled: bool = False) -> None:
        """Raises if a worker has died, or has just ended where torch looks for itself."""
        if self.closing:
            return
        for worker in self.processes:
            if not worker.os.alive and (worker.os.exit_code or polled):
                how = "is killed by signal: Killed. "
                if worker.os.exit_code >= 0:
                    how = f"exited unexpectedly with exit code {worker.os.exit_code}. "
                raise RuntimeError(f"DataLoader worker (pid {worker.pid}) {how}")

    def close(self) -> None:
        self.closing = True
        # torch's workers send from a thread, which does not keep them from ending.
        self.results.take_all()
        for requests in self.requests:
            requests.send(None)
        for worker in self.processes:
            worker.join(_GRACE)
            worker.kill()

    def __del__(self) -> None:
        try:
            # A forked child has a copy, and so has a process that has ended.
            if current().process is self._process and not self.closing:
                self.close()
        except Killed:
            pass


def _on_death(number: int, frame: Any) -> None:
    # The loader keeps this handler in a global variable, which simulated processes share.
    for workers in list(getattr(current().process, "workers_of_torch", ())):
        workers.check()


class _Iterator:
    def __init__(self, loader: _Loader, workers: _Workers) -> None:
        self._loader, self._workers = loader, workers
        self._sampler = iter(loader.sampler) if loader.sampler is not None else None
        self._live = [True] * loader.count
        self._next_worker = self._sent = self._received = 0
        self._come: dict[int, Any] = {}
        self._of: dict[int, int] = {}  # the worker of each request under way
        for _ in range(loader.ahead):
            self._request()

    def __iter__(self) -> _Iterator:
        return self

    def _request(self) -> None:
        request = None
        if self._sampler is not None:
            request = next(self._sampler, None)
            if request is None:
                return
        for _ in self._live:
            worker = self._next_worker
            self._next_worker = (worker + 1) % len(self._live)
            if self._live[worker]:
                break
        else:
            return
        self._workers.requests[worker].send((self._workers.passes, self._sent, request))
        self._of[self._sent] = worker
        self._sent += 1

    def __next__(self) -> Any:
        while True:
            while self._received < self._sent:
                worker = self._of[self._received]
                if self._received in self._come or self._live[worker]:
                    break
                del self._of[self._received]
                self._received += 1
            else:
                if not self._loader.persistent:
                    self._workers.close()
                raise StopIteration
            if self._received not in self._come:
                self._take()
                continue
            result = self._come.pop(self._received)
            self._received += 1
            if isinstance(result, _Ended):
                self._live[worker] = False
                self._request()
                continue
            self._request()
            if isinstance(result, Exception):
                text = "".join(result.args) if result.args else ""
                name = type(result).__name__
                raise type(result)(
                    f"Caught {name} in DataLoader worker process {worker}.\nOriginal {name}: {text}"
                )
            return result

    def _take(self) -> None:
        timeout = self._loader.timeout
        while not self._workers.results.poll(timeout or 5.0):
            self._workers.check(polled=True)
            if timeout:
                raise RuntimeError(f"DataLoader timed out after {timeout} seconds")
        of_pass, number, result = self._workers.results.recv()
        if of_pass == self._workers.passes:
            self._come[number] = result


def _work(
    dataset: Any,
    collate: Any,
    init: Any,
    place: tuple[int, int],
    requests: Any,
    results: Any,
) -> None:
    process = current().process
    number, count = place
    process.worker_info = SimpleNamespace(id=number, dataset=dataset, num_workers=count, seed=0)
    init(number)
    iterator: Any = None
    of_pass = -1
    while (asked := requests.recv()) is not None:
        serial, sequence, request = asked
        if serial != of_pass and isinstance(dataset, IterableDataset):
            iterator, of_pass = iter(dataset), serial
        if sequence is None:
            continue
        try:
            raw = next(iterator) if request is None else dataset.__getitems__(request)
            result = collate(raw)
        except StopIteration:
            result = _Ended()
        except KeyboardInterrupt:
            return
        except Exception as error:
            result = error
        results.send((serial, sequence, result))
