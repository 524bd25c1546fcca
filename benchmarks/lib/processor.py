"""Processor time of processes. Imports nothing but psutil: environments of peers have no more."""

from __future__ import annotations

import contextlib

import psutil


def processor_seconds(parent: int, *, itself: bool = False) -> float:
    """Of all that a process has started, those that have ended included if they were waited for.

    Args:
        parent: its number.
        itself: whether its own seconds count too.
    """
    top = psutil.Process(parent)
    total = 0.0
    for process in [*top.children(recursive=True), *[top] * itself]:
        with contextlib.suppress(psutil.NoSuchProcess):
            total += sum(process.cpu_times()[:4])
    return total
