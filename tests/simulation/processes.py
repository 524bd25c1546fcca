"""A simulated process, as the kernel knows it, and the faults of a history that befall it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simulated_world import Fiber, World


class Process:
    """A simulated process. Its first fiber is its main thread."""

    def __init__(self, world: World, name: str, parent: Process | None) -> None:
        self.world, self.name, self.parent = world, name, parent
        self.pid = 1000 + len(world.processes)
        self.fibers: list[Fiber] = []
        self.ends: list[Any] = []  # of pipes, that it holds
        self.children: list[Process] = []
        self.finalizers: list[tuple[int, Callable[[], None]]] = []
        self.exit_code: int | None = None
        self.exited: list[Any] = []  # who waits for its end
        self.paused: list[Fiber] | None = None  # who would run if it were not stopped
        self.continued: list[Any] = []  # who waits until it runs again
        self.steps = 0
        self.faults: dict[int, Callable[[Process], None]] = {}  # by its number of steps
        self.signals: list[int] = []
        self.handlers: dict[int, Any] = {}
        self.fails: dict[str, BaseException] = {}  # what the next call of a kind raises
        self.rank, self.world_size, self.host = 0, 1, "node0"
        if parent is not None:
            parent.children.append(self)
            self.rank, self.world_size = parent.rank, parent.world_size
        world.processes.append(self)

    @property
    def alive(self) -> bool:
        return self.exit_code is None


@dataclass(frozen=True)
class Fault:
    """At a process's step number `step`, it is killed, stopped, delayed, refused something, or cut
    off from another."""

    kind: str
    process: str
    step: int
    seconds: float = 0.0
    other: str = ""


def inject_faults(
    world: World, faults: Sequence[Fault], inject: Callable[[Process, Fault], None]
) -> list[tuple[str, float]]:
    """Has every fault happen to the first process of its name.

    Args:
        inject: for those of other kinds than "kill", "stop" and "delay".

    Returns:
        What has happened, and when; it grows.
    """
    left = list(faults)
    happened: list[tuple[str, float]] = []

    def plan(process: Process) -> None:
        for fault in [f for f in left if f.process == process.name]:
            left.remove(fault)
            process.faults[fault.step] = partial(happen, fault=fault)

    def happen(process: Process, fault: Fault) -> None:
        happened.append((f"{fault.kind} {fault.process} {fault.other}", world.now))
        if fault.kind == "kill":
            world.exit(process, -9)
        elif fault.kind == "stop":
            world.stop(process, fault.seconds)
        elif fault.kind == "delay":
            world.sleep(fault.seconds)
        else:
            inject(process, fault)

    world.begun = plan
    return happened
