"""A simulated process, as the kernel knows it."""

from __future__ import annotations

from collections.abc import Callable
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
