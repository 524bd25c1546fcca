"""A machine under a simulated clock, on which only one thread runs at a time.

Simulated threads are greenlets, so switching takes a third of a microsecond. Every call that may
block or be seen by another thread is a *step*: there the history decides who runs next. When
nobody can run, the clock moves on to the next timer; when there is none, that is a deadlock. So one
list of choices is one history, and a history that went wrong can be had again.

A process is a set of threads and of ends of pipes. One that is killed runs no more: its threads
stay where they are until the world ends, and the kernel closes its ends.
"""

from __future__ import annotations

import heapq
import itertools
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any

from greenlet import getcurrent, greenlet
from histories import Choices
from processes import Process

STEP_SECONDS = 2e-5
FAIR = 128  # steps after which whoever has waited longest runs


class Killed(BaseException):
    """The process of this thread is no more, or the world has ended."""


class Fiber:
    """A simulated thread."""

    def __init__(self, process: Process, name: str, work: Callable[[], None]) -> None:
        self.process, self.name, self.work = process, name, work
        self.greenlet = greenlet(self._live, process.world.controller)
        self.alive = True
        self.daemon = True
        self.over = False
        self.waits = 0  # number of its latest wait: entries of earlier ones are stale
        self.waiting = False
        self.ready_since = 0
        self.priority = process.world.choices.priority()
        self.joined: list[Any] = []

    def _live(self) -> None:
        try:
            self.work()
        except Killed:
            pass
        finally:
            self.alive = False
            if not self.over:
                self.process.world.ended(self)

    def __repr__(self) -> str:
        return f"{self.process.name}/{self.name}"


class World:
    """Runs a history: call `run` with what the first process does."""

    def __init__(self, choices: Choices, *, seconds: float, steps: int = 400_000) -> None:
        """
        Args:
            seconds: on the simulated clock, and `steps`: what no history may need.
        """
        self.choices = choices
        self.now, self.steps = 0.0, 0
        self.limit_seconds, self.limit_steps = seconds, steps
        self.processes: list[Process] = []
        self.violation: str | None = None
        self.begun: Callable[[Process], None] = lambda process: None  # told of every new process
        self._runnable: list[Fiber] = []
        self._timers: list[tuple[float, int, Any, int]] = []
        self._numbers = itertools.count()
        self.controller = getcurrent()
        self._over = False
        self.capacity = 1 << 16
        """Bytes that a pipe of a process holds."""
        self.network: Any = None
        """See `simulated_distributed`."""
        self.trace = trace

    def run(self) -> str | None:
        """Runs all processes until the last has ended; returns what went wrong, if anything did."""
        global _running
        try:
            while (following := self._choose(None)) is not None:
                _running = following
                following.greenlet.switch()  # until it ends
            for process in self.processes:
                for fiber in process.fibers:
                    fiber.over = True
                    if fiber.greenlet:  # it has begun, and not ended
                        _running = fiber
                        fiber.greenlet.throw(Killed)
        finally:
            _running = None
        return self.violation

    # Threads

    def spawn(self, fiber: Fiber) -> None:
        fiber.process.fibers.append(fiber)
        self._ready(fiber)

    def ended(self, fiber: Fiber) -> None:
        self.wake(fiber.joined)
        if fiber in self._runnable:
            self._runnable.remove(fiber)

    def pause(self) -> None:
        """A step of the running thread: another one may run before it goes on."""
        me = current()
        self.steps += 1
        self.now += STEP_SECONDS
        process = me.process
        process.steps += 1
        if self.trace is not None:
            self.trace(f"{self.now:9.5f} {me}: {doing()}")
        if process.faults and (fault := process.faults.pop(process.steps, None)) is not None:
            fault(process)
        self._switch(me)
        if process.signals:
            self._handle_signals(me)

    def _handle_signals(self, me: Fiber) -> None:
        while me.process.signals and me is me.process.fibers[0]:
            number = me.process.signals.pop(0)
            handler = me.process.handlers.get(number)
            if callable(handler):
                handler(number, None)

    def sleep(self, seconds: float) -> None:
        self.pause()
        due = self.now + seconds
        while self.now < due:
            self._wait((), due)

    def until(
        self, ready: Callable[[], bool], *waiters: list[Any], timeout: float | None = None
    ) -> bool:
        """Waits until `ready`, which whoever wakes one of `waiters` has changed; False if it is not
        within `timeout`."""
        self.pause()
        due = None if timeout is None else self.now + timeout
        while not ready():
            if due is not None and self.now >= due:
                return False
            self._wait(waiters, due)
        return True

    def _wait(self, waiters: tuple[list[Any], ...], due: float | None) -> None:
        me = current()
        me.waits += 1
        me.waiting = True
        for waiting in waiters:
            waiting.append((me, me.waits))
        if due is not None:
            heapq.heappush(self._timers, (due, next(self._numbers), me, me.waits))
        if me in self._runnable:
            self._runnable.remove(me)
        self._switch(me)
        if me.process.signals:
            self._handle_signals(me)

    def wake(self, waiters: list[Any]) -> None:
        for fiber, number in waiters:
            self._wake(fiber, number)
        waiters.clear()

    def _wake(self, fiber: Fiber, number: int) -> None:
        if fiber.waiting and fiber.waits == number:
            fiber.waiting = False
            self._ready(fiber)

    def _ready(self, fiber: Fiber) -> None:
        if fiber.process.paused is not None:
            fiber.process.paused.append(fiber)
        elif fiber.process.alive:
            fiber.ready_since = self.steps
            self._runnable.append(fiber)

    def _switch(self, me: Fiber) -> None:
        """Lets whoever is next run; returns when it is `me`'s turn again."""
        global _running
        following = self._choose(me)
        if following is not me:
            _running = following
            (following.greenlet if following is not None else self.controller).switch()

    def _choose(self, me: Fiber | None) -> Fiber | None:
        """Who runs next; None if the world has ended."""
        while not self._over:
            while self._timers and self._timers[0][0] <= self.now:
                _, _, what, number = heapq.heappop(self._timers)
                if isinstance(what, Fiber):
                    self._wake(what, number)
                else:
                    what()
            if self._runnable:
                break
            if not any(process.alive for process in self.processes):
                self._over = True
            elif not self._timers:
                self.note("a deadlock: nobody can run, and no timer is set")
            else:
                self.now = max(self.now, self._timers[0][0])
        if self.now > self.limit_seconds or self.steps > self.limit_steps:
            self.note(f"no end within {self.limit_seconds} simulated seconds, {self.steps} steps")
        if self._over:
            return None
        if self.steps % FAIR == 0:
            following = min(self._runnable, key=lambda fiber: fiber.ready_since)
        else:
            following = self.choices.next_fiber(me, self._runnable)
        following.ready_since = self.steps
        return following

    def violate(self, violation: str) -> None:
        """Ends the world: the running thread did what never may happen."""
        current()
        self.note(violation)
        self.controller.switch()

    def note(self, violation: str) -> None:
        if self._over:
            return
        places = [
            f"-- {fiber}\n{stack_of(fiber)}"
            for process in self.processes
            if process.alive
            for fiber in process.fibers
            if fiber.alive
        ]
        self.violation = "\n".join([f"at {self.now:.3f} s: {violation}", *places])
        self._over = True

    # Processes

    def after(self, seconds: float, work: Callable[[], None]) -> None:
        """Has the kernel do something later."""
        heapq.heappush(self._timers, (self.now + seconds, next(self._numbers), work, 0))

    def exit(self, process: Process, code: int) -> None:
        """Ends a process as the kernel does: its threads run no more and its ends are closed. If it
        is that of the running thread, this is its last step."""
        if not process.alive:
            return
        process.exit_code = code
        self._runnable = [fiber for fiber in self._runnable if fiber.process is not process]
        for end in list(process.ends):
            end.release(process)
        self.wake(process.exited)
        if (parent := process.parent) is not None:
            self.signal(parent, SIGCHLD)

    def signal(self, process: Process, number: int) -> None:
        """Sends a signal that the process handles, in its main thread; others are ignored."""
        if process.alive and callable(process.handlers.get(number)):
            process.signals.append(number)
            self._wake(process.fibers[0], process.fibers[0].waits)

    def stop(self, process: Process, seconds: float) -> None:
        """Stops a process for some time, as SIGSTOP and SIGCONT do."""
        if process.paused is None and process.alive:
            process.paused = [f for f in self._runnable if f.process is process]
            self._runnable = [f for f in self._runnable if f.process is not process]
            self.after(seconds, lambda: self._go_on(process))

    def _go_on(self, process: Process) -> None:
        fibers, process.paused = process.paused or [], None
        for fiber in fibers:
            self._ready(fiber)
        self.wake(process.continued)


SIGCHLD = 17

_running: Fiber | None = None


def current() -> Fiber:
    """The thread that runs."""
    if _running is None or _running.over:
        raise Killed
    return _running


trace: Callable[[str], None] | None = None
"""Told of every step of worlds made from now on."""


def doing() -> str:
    """The call of the running thread, and where the loader made it."""
    frame = sys._getframe(2)
    called = frame.f_code.co_name
    while frame.f_back is not None and "simulated_" in frame.f_code.co_filename:
        called, frame = frame.f_code.co_name, frame.f_back
    return f"{called} in {os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"


def stack_of(fiber: Fiber) -> str:
    """The lines of the loader in it."""
    running = sys._getframe() if fiber is _running else None
    return "".join(
        f"   {os.path.basename(line.filename)}:{line.lineno} {line.name}: {line.line}\n"
        for line in traceback.extract_stack(fiber.greenlet.gr_frame or running)
        if "/evenstep/" in line.filename
    )
