"""Faults of a history, and how they come about in its world."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from os_process import Process
from simulated_world import World


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
