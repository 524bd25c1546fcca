"""Memory and processor time of processes. Imports nothing but psutil: neither environments of peers
nor a process that is measured need more."""

from __future__ import annotations

from contextlib import suppress

import psutil


def memory() -> float:
    """Bytes (PSS) of this process and all that it has started."""
    total = 0
    for process in (own := psutil.Process(), *own.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            total += process.memory_full_info().pss
    return float(total)


def processor_seconds(parent: int, *, itself: bool = False) -> float:
    """Of all that a process has started, those that have ended included if they were waited for.

    Args:
        parent: its number.
        itself: whether its own seconds count too.
    """
    top = psutil.Process(parent)
    total = 0.0
    for process in [*top.children(recursive=True), *[top] * itself]:
        with suppress(psutil.NoSuchProcess):
            total += sum(process.cpu_times()[:4])
    return total
